# SPDX-License-Identifier: Apache-2.0
"""What moves: writes and reads, between processes, agents of one process and inside one agent; every form of list."""

import unittest

import numpy as np

import agents
from agents import Memory, Partner, bytes_by_link, finish, make_agent, meet, transfer

BLOCK = 4096
LINK = {"DRAM": "shm", "VRAM": "GPUs cuda_ipc"}[agents.KIND]


def scattered(size, count, seed):
    """`count` different blocks of a memory of that size, as offsets."""
    return np.random.default_rng(seed).permutation(size // BLOCK)[:count] * BLOCK


class Transfers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.agent = make_agent("here")
        cls.partner = Partner("there")
        meet(cls.agent, cls.partner)

    @classmethod
    def tearDownClass(cls):
        cls.agent.remove_remote_agent("there")
        cls.partner.close()
        del cls.agent

    def pair(self, size, label, here=0, there=0):
        """Memory on both sides; the partner's piece."""
        memory = Memory(self.agent, size, here)
        self.addCleanup(memory.deregister)
        address, _, device = self.partner.run(agents.allocate, label, size, there)
        self.agent.add_remote_agent(self.partner.run(agents.metadata))
        return memory, address, device

    def moves(self, operation, blocks, size=1 << 20):
        """Scattered blocks with every byte looked at, also those between the blocks, and the bytes counted."""
        memory, far, device = self.pair(size, operation + str(blocks), "here", "there")
        near_at, far_at = scattered(size, blocks, 1), scattered(size, blocks, 2)
        before_here, before_there = memory.bytes.copy(), np.frombuffer(
            self.partner.run(agents.content, operation + str(blocks)), dtype=np.uint8).copy()
        counted = sum(bytes_by_link().values())
        transfer(self.agent, operation, [memory.piece(int(at), BLOCK) for at in near_at],
                 [(far + int(at), BLOCK, device) for at in far_at], "there")
        for near, there in zip(near_at, far_at):
            if operation == "WRITE":
                before_there[there:there + BLOCK] = before_here[near:near + BLOCK]
            else:
                before_here[near:near + BLOCK] = before_there[there:there + BLOCK]
        self.assertEqual(memory.bytes.tobytes(), before_here.tobytes())
        self.assertEqual(self.partner.run(agents.content, operation + str(blocks)), before_there.tobytes())
        self.assertEqual(sum(bytes_by_link().values()) - counted, blocks * BLOCK)

    def test_blocks_are_written(self):
        self.moves("WRITE", 100)

    def test_blocks_are_read(self):
        self.moves("READ", 100)

    def test_many_blocks_of_one_size_are_written(self):
        self.moves("WRITE", 2000, 16 << 20)

    def test_many_blocks_of_one_size_are_read(self):
        self.moves("READ", 2000, 16 << 20)

    def test_a_hundred_thousand_blocks(self):
        size = 100_000 * 64 * 2
        memory, far, device = self.pair(size, "many", "many", 0)
        order = np.random.default_rng(3).permutation(200_000)[:100_000]
        transfer(self.agent, "WRITE", [memory.piece(int(at) * 64, 64) for at in order],
                 [(far + int(at) * 64, 64, device) for at in order], "there")
        got = np.frombuffer(self.partner.run(agents.content, "many"), dtype=np.uint8).reshape(-1, 64)
        sent = memory.bytes.reshape(-1, 64)
        self.assertTrue((got[order] == sent[order]).all())
        rest = np.setdiff1d(np.arange(200_000), order)
        self.assertFalse(got[rest].any())

    def test_prepared_lists_merge_and_differ_in_length(self):
        size = 64 * BLOCK
        memory, far, device = self.pair(size, "merged", "merged", 0)
        near = self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", [memory.piece(i * BLOCK, BLOCK) for i in range(64)],
                                          agents.KIND)
        there = self.agent.prep_xfer_dlist("there", [(far + i * BLOCK, BLOCK, device) for i in range(64)], agents.KIND)
        chosen = np.array([0, 1, 2, 10, 11, 40, 63], dtype=np.int32)
        handle = self.agent.make_prepped_xfer("WRITE", near, chosen, there, chosen)
        self.agent.transfer(handle)
        finish(self.agent, handle)
        self.agent.release_xfer_handle(handle)
        got = np.frombuffer(self.partner.run(agents.content, "merged"), dtype=np.uint8).reshape(64, BLOCK)
        sent = memory.bytes.reshape(64, BLOCK)
        self.assertTrue((got[chosen] == sent[chosen]).all())
        self.assertFalse(np.delete(got, chosen, axis=0).any())

    def test_a_request_is_posted_many_times(self):
        memory, far, device = self.pair(BLOCK, "again", 0, 0)
        handle = agents.request(self.agent, "WRITE", [memory.piece()], [(far, BLOCK, device)], "there")
        for value in range(1, 200):
            memory.set(value)
            self.agent.transfer(handle)
            finish(self.agent, handle)
            if value % 20 == 0:
                self.assertEqual(set(self.partner.run(agents.content, "again")), {value})
        self.agent.release_xfer_handle(handle)

    def test_several_registrations_and_devices_in_one_list(self):
        near = [Memory(self.agent, BLOCK, i + 1, device=i) for i in range(5)]
        far = [self.partner.run(agents.allocate, f"device{i}", BLOCK, 0, i) for i in range(5)]
        self.agent.add_remote_agent(self.partner.run(agents.metadata))
        transfer(self.agent, "WRITE", [memory.piece() for memory in near], far[::-1], "there")
        for i in range(5):
            self.assertEqual(set(self.partner.run(agents.content, f"device{i}")), {5 - i})
        for memory in near:
            memory.deregister()

    def test_one_source_may_go_to_many_places(self):
        memory, far, device = self.pair(4 * BLOCK, "spread", "spread", 0)
        transfer(self.agent, "WRITE", [memory.piece(0, BLOCK)] * 4,
                 [(far + i * BLOCK, BLOCK, device) for i in range(4)], "there")
        self.assertEqual(self.partner.run(agents.content, "spread"), memory.bytes[:BLOCK].tobytes() * 4)

    def test_places_that_overlap_are_refused(self):
        memory, far, device = self.pair(4 * BLOCK, "overlap", 1, 0)
        with self.assertRaisesRegex(Exception, "INVALID_PARAM"):
            transfer(self.agent, "WRITE", [memory.piece(0, BLOCK), memory.piece(BLOCK, BLOCK)],
                     [(far, BLOCK, device), (far + BLOCK // 2, BLOCK, device)], "there")
        self.assertEqual(set(self.partner.run(agents.content, "overlap")), {0})
        transfer(self.agent, "WRITE", [memory.piece()], [(far, 4 * BLOCK, device)], "there")

    def test_pieces_of_no_bytes_are_left_out(self):
        memory, far, device = self.pair(BLOCK, "empty", 3, 0)
        transfer(self.agent, "WRITE", [memory.piece(0, 0), memory.piece(0, 8)],
                 [(far + 16, 0, device), (far, 8, device)], "there")
        self.assertEqual(self.partner.run(agents.content, "empty"), b"\3" * 8 + bytes(BLOCK - 8))
        transfer(self.agent, "WRITE", [memory.piece(0, 0)], [(far, 0, device)], "there")

    def test_bytes_outside_of_a_registration_are_refused(self):
        memory, far, device = self.pair(BLOCK, "outside", 1, 0)
        for near, there in [((memory.address + 8, BLOCK, 0), (far, BLOCK, device)),
                            (memory.piece(), (far + 8, BLOCK, device))]:
            with self.assertRaises(Exception):
                transfer(self.agent, "WRITE", [near], [there], "there")
        self.assertEqual(set(self.partner.run(agents.content, "outside")), {0})

    def test_the_cost_is_estimated(self):
        memory, far, device = self.pair(1 << 20, "cost")
        handle = agents.request(self.agent, "WRITE", [memory.piece()], [(far, 1 << 20, device)], "there")
        duration, margin, _ = self.agent.estimate_xfer_cost(handle)
        self.assertGreater(duration, 10)
        self.assertLess(duration, 100_000)
        self.assertLess(margin, duration)
        self.agent.release_xfer_handle(handle)

    def test_the_back_end_that_carries_a_request_is_named(self):
        memory, far, device = self.pair(BLOCK, "named")
        handle = agents.request(self.agent, "WRITE", [memory.piece()], [(far, BLOCK, device)], "there")
        self.assertEqual(self.agent.query_xfer_backend(handle), agents.BACKEND)
        self.agent.release_xfer_handle(handle)
        self.assertIn(LINK, agents.live_params(self.agent)["route.there"])


class OneProcess(unittest.TestCase):
    def test_an_agent_moves_its_own_memory(self):
        agent = make_agent("alone")
        first, second = Memory(agent, BLOCK, "first"), Memory(agent, BLOCK)
        for operation in ("WRITE", "READ"):
            second.set(0)
            near, there = (first, second) if operation == "WRITE" else (second, first)
            transfer(agent, operation, [near.piece()], [there.piece()], "alone", b"done")
            self.assertEqual(first.bytes.tobytes(), second.bytes.tobytes())
            self.assertEqual(agents.take_notifications(agent, 1), {"alone": [b"done"]})

    def test_two_agents_of_one_process(self):
        one, two = make_agent("one"), make_agent("two")
        first, second = Memory(one, BLOCK, "one"), Memory(two, BLOCK)
        one.add_remote_agent(two.get_agent_metadata())
        transfer(one, "WRITE", [first.piece()], [second.piece()], "two", b"came")
        self.assertEqual(first.bytes.tobytes(), second.bytes.tobytes())
        self.assertEqual(agents.take_notifications(two, 1), {"one": [b"came"]})

    def test_sixty_four_agents(self):
        center = make_agent("center")
        target = Memory(center, 64 * BLOCK)
        others = [make_agent(f"agent{i}") for i in range(64)]
        memories = [Memory(agent, BLOCK, i + 1) for i, agent in enumerate(others)]
        for i, agent in enumerate(others):
            agent.add_remote_agent(center.get_agent_metadata())
            transfer(agent, "WRITE", [memories[i].piece()], [target.piece(i * BLOCK, BLOCK)], "center", b"%d" % i)
        self.assertTrue((target.bytes.reshape(64, BLOCK) == np.arange(1, 65, dtype=np.uint8)[:, None]).all())
        self.assertEqual(agents.take_notifications(center, 64), {f"agent{i}": [b"%d" % i] for i in range(64)})


if __name__ == "__main__":
    unittest.main()
