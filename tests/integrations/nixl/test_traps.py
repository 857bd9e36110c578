# SPDX-License-Identifier: Apache-2.0
"""Calls in odd orders, and settings that few use: what NIXL's agent lets through, a back end has to bear."""

import os
import re
import socket
import stat
import tempfile
import threading
import unittest

import numpy as np

import agents
from agents import Memory, Partner, bytes_by_link, doctor, finish, make_agent, meet, take_notifications, transfer
from test_peers import WAYS, Pairs, settled

BLOCK = 4096


def regions():
    """How many regions the contexts of this process have."""
    return len(re.findall(r"^ *region \d+ ", doctor(), re.MULTILINE))


def counter(name):
    return sum(map(int, re.findall(rf"^{name} (\d+)$", doctor(), re.MULTILINE)))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetch(far, name, port):
    far.agent.fetch_remote_metadata(name, "127.0.0.1", port)
    agents.wait_for(lambda: far.agent.check_remote_metadata(name))


def both_ways(test, agent, partner):
    """Scattered blocks there and back, every byte looked at."""
    memory = Memory(agent, 64 * BLOCK, "sent")
    far = partner.run(agents.allocate, "both", 64 * BLOCK)
    agent.add_remote_agent(partner.run(agents.metadata))
    sent = memory.bytes.copy()
    order = [int(at) for at in np.random.default_rng(4).permutation(64)]
    near = [memory.piece(at * BLOCK, BLOCK) for at in range(64)]
    there = [(far[0] + at * BLOCK, BLOCK, far[2]) for at in order]
    transfer(agent, "WRITE", near, there, partner.name)
    got = np.frombuffer(partner.run(agents.content, "both"), dtype=np.uint8).reshape(64, BLOCK)
    test.assertTrue((got[order] == sent.reshape(64, BLOCK)).all())
    memory.set(0)
    transfer(agent, "READ", near, there, partner.name)
    test.assertTrue((memory.bytes == sent).all())
    memory.deregister()


class Calls(Pairs):
    def test_a_registration_that_fails_in_the_middle_leaves_nothing(self):
        agent = make_agent("here")
        good = np.zeros(BLOCK, dtype=np.uint8)
        memory = Memory(agent, BLOCK)
        before = regions()
        self.assertGreater(before, 0)
        with self.assertRaises(Exception):
            agent.register_memory([(good.ctypes.data, BLOCK, 0, ""), (16, BLOCK, 0, "")], "DRAM")
        self.assertEqual(regions(), before)
        agent.deregister_memory(agent.register_memory([(good.ctypes.data, BLOCK, 0, "")], "DRAM"))
        memory.deregister()
        self.assertEqual(regions(), before - 1)

    def test_a_second_agent_of_the_same_name_is_refused(self):
        agent, partner = self.pair()
        with Partner("there") as other:
            with self.assertRaisesRegex(Exception, "NOT_ALLOWED"):
                agent.add_remote_agent(other.run(agents.metadata))
            both_ways(self, agent, partner)

    def test_names_of_any_bytes(self):
        agent, partner = self.pair("a tab\t, a line\nand 中文")
        both_ways(self, agent, partner)
        agent.send_notif(partner.name, b"note")
        self.assertEqual(partner.run(agents.notifications, 1), {"here": [b"note"]})

    def test_connecting_early(self):
        agent, partner = self.pair()
        agent.make_connection("there")
        agent.make_connection("there", [agents.BACKEND])
        with self.assertRaises(Exception):
            agent.make_connection("nobody")
        both_ways(self, agent, partner)

    def test_views_for_kernels_are_refused(self):
        agent, _ = self.pair()
        memory = Memory(agent, BLOCK)
        with self.assertRaises(Exception):
            agent.prep_mem_view(agent.get_xfer_descs([memory.piece()], agents.KIND))

    def test_a_message_to_oneself(self):
        agent = make_agent("here")
        agent.send_notif("here", b"note")
        self.assertEqual(take_notifications(agent, 1), {"here": [b"note"]})

    def test_strides(self):
        agent, partner = self.pair()
        memory = Memory(agent, 64 * BLOCK, "strided")
        far = partner.run(agents.allocate, "strided", 64 * BLOCK)
        agent.add_remote_agent(partner.run(agents.metadata))
        # Every second page here, to adjoining pages there.
        here = agent.prep_xfer_dlist("NIXL_INIT_AGENT",
                                     np.array([[memory.address, BLOCK, 0, 2 * BLOCK, 32]], dtype=np.uint64), agents.KIND)
        there = agent.prep_xfer_dlist("there", np.array([[far[0], BLOCK, 0, BLOCK, 32]], dtype=np.uint64), agents.KIND)
        chosen = np.arange(32, dtype=np.int32)
        handle = agent.make_prepped_xfer("WRITE", here, chosen, there, chosen)
        agent.transfer(handle)
        finish(agent, handle)
        agent.release_xfer_handle(handle)
        got = np.frombuffer(partner.run(agents.content, "strided"), dtype=np.uint8).reshape(64, BLOCK)
        self.assertTrue((got[:32] == memory.bytes.reshape(64, BLOCK)[::2]).all())
        self.assertFalse(got[32:].any())

    def test_lists_that_are_not_merged(self):
        agent, partner = self.pair()
        memory = Memory(agent, 16 * BLOCK, "apart")
        far = partner.run(agents.allocate, "apart", 16 * BLOCK)
        agent.add_remote_agent(partner.run(agents.metadata))
        here = agent.prep_xfer_dlist("NIXL_INIT_AGENT", [memory.piece(i * BLOCK, BLOCK) for i in range(16)], agents.KIND)
        there = agent.prep_xfer_dlist("there", [(far[0] + i * BLOCK, BLOCK, 0) for i in range(16)], agents.KIND)
        chosen = np.arange(16, dtype=np.int32)
        handle = agent.make_prepped_xfer("WRITE", here, chosen, there, chosen, skip_desc_merge=True)
        agent.transfer(handle)
        finish(agent, handle)
        agent.release_xfer_handle(handle)
        self.assertEqual(partner.run(agents.content, "apart"), memory.bytes.tobytes())

    def test_a_request_that_failed_can_be_posted_again(self):
        agent, partner = self.pair(way="tcp", timeout="1s")
        memory = Memory(agent, 256 << 20, 3)
        far = partner.run(agents.allocate, "again", memory.size)
        agent.add_remote_agent(partner.run(agents.metadata))
        handle = agents.request(agent, "WRITE", [memory.piece()], [far], "there")
        with agents.frozen(partner):
            with self.assertRaises(Exception):
                agent.transfer(handle)
                finish(agent, handle)
            with self.assertRaises(Exception):  # it stays
                agent.check_xfer_state(handle)

        def again():
            try:
                return agent.transfer(handle)
            except Exception:  # the peer is not heard yet
                return None

        if agents.wait_for(again) != "DONE":
            finish(agent, handle)
        self.assertEqual(set(partner.run(agents.content, "again")), {3})
        agent.release_xfer_handle(handle)

    def test_an_agent_that_ends_while_bytes_move(self):
        agent, partner = self.pair(way=next(iter(WAYS)))
        memory, handle = self.started(agent, partner, "READ", 1 << 30)
        del handle  # its release is refused; NIXL keeps it for the agent's end
        del memory.agent, agent
        memory.set(77)
        self.assertTrue(settled(memory))
        self.assertTrue((memory.bytes == 77).all())
        self.assertEqual(partner.run(agents.content, "far", 0, 8), bytes([2] * 8))

    def test_an_agent_that_is_removed_while_bytes_move(self):
        agent, partner = self.pair(way="tcp")
        memory, handle = self.started(agent, partner, "WRITE", 1 << 30)
        agent.remove_remote_agent("there")
        for _ in range(2):
            try:
                agent.release_xfer_handle(handle)
            except Exception:
                pass
        memory.deregister()  # waits for the bytes
        meet(agent, partner)
        both_ways(self, agent, partner)

    def test_registering_adding_and_removing_while_others_post(self):
        agent, partner = self.pair()
        with Partner("other") as other:
            blob = other.run(agents.metadata)
            memories = [Memory(agent, BLOCK, i + 1) for i in range(4)]
            far = partner.run(agents.allocate, "shared", 4 * BLOCK)
            agent.add_remote_agent(partner.run(agents.metadata))
            over, failures = threading.Event(), []

            def repeat(what):
                try:
                    while not over.is_set():
                        what()
                except Exception as error:
                    failures.append(error)

            def come_and_go():
                agent.add_remote_agent(blob)
                agent.remove_remote_agent("other")

            work = [lambda: Memory(agent, BLOCK).deregister(), come_and_go]
            threads = [threading.Thread(target=repeat, args=(what,)) for what in work]
            for thread in threads:
                thread.start()
            for number in range(300):
                at = number % 4
                transfer(agent, "WRITE", [memories[at].piece()], [(far[0] + at * BLOCK, BLOCK, 0)], "there")
            over.set()
            for thread in threads:
                thread.join()
            self.assertEqual(failures, [])
            got = np.frombuffer(partner.run(agents.content, "shared"), dtype=np.uint8).reshape(4, BLOCK)
            self.assertTrue((got == np.arange(1, 5, dtype=np.uint8)[:, None]).all())


class Settings(Pairs):
    def test_threads_that_help_to_copy(self):
        agent, kinds = make_agent("here", {"copy_threads": "2"}), ("DRAM", "DRAM")
        with Partner("there") as partner:
            meet(agent, partner)
            memory = Memory(agent, 64 << 20, "large", kind="DRAM")
            far = partner.run(agents.allocate, "large", memory.size, 0, 0, "DRAM")
            agent.add_remote_agent(partner.run(agents.metadata))
            before, counted = counter("peerlane_copy_jobs_total"), sum(bytes_by_link().values())
            transfer(agent, "WRITE", [memory.piece()], [far], "there", kinds=kinds)
            self.assertEqual(partner.run(agents.content, "large"), memory.bytes.tobytes())
            sent = memory.bytes.copy()
            memory.set(0)
            transfer(agent, "READ", [memory.piece()], [far], "there", kinds=kinds)
            self.assertTrue((memory.bytes == sent).all())
            self.assertGreater(counter("peerlane_copy_jobs_total"), before)
            self.assertEqual(sum(bytes_by_link().values()) - counted, 2 * memory.size)
        for wrong in ("many", "65", "-1"):
            with self.subTest(wrong=wrong), self.assertRaises(Exception):
                make_agent("here", {"copy_threads": wrong})

    def test_every_synchronisation_mode(self):
        modes = agents.nixl_thread_sync_t
        for mode in (modes.NIXL_THREAD_SYNC_NONE, modes.NIXL_THREAD_SYNC_STRICT, modes.NIXL_THREAD_SYNC_RW):
            with self.subTest(mode=mode):
                agent = make_agent("here", sync_mode=mode)
                with Partner("there") as partner:
                    meet(agent, partner)
                    both_ways(self, agent, partner)

    def test_telemetry_of_nixl(self):
        agent = make_agent("here", capture_telemetry=True)
        with Partner("there") as partner:
            meet(agent, partner)
            both_ways(self, agent, partner)
            memory = Memory(agent, BLOCK, 1)
            far = partner.run(agents.allocate, "told", BLOCK)
            agent.add_remote_agent(partner.run(agents.metadata))
            handle = agents.request(agent, "WRITE", [memory.piece()], [far], "there")
            if agent.transfer(handle) != "DONE":
                finish(agent, handle)
            self.assertEqual(agent.get_xfer_telemetry(handle).totalBytes, BLOCK)
            agent.release_xfer_handle(handle)

    def test_metadata_by_the_listener(self):
        ports = free_port(), free_port()
        agent = make_agent("here", enable_listen_thread=True, listen_port=ports[0])
        with Partner("there", enable_listen_thread=True, listen_port=ports[1]) as partner:
            agent.fetch_remote_metadata("there", "127.0.0.1", ports[1])
            agents.wait_for(lambda: agent.check_remote_metadata("there"))
            partner.run(fetch, "here", ports[0])
            both_ways(self, agent, partner)

    def test_without_detours(self):
        with agents._environment({"PEERLANE_STRICT": "1"}):
            agent = make_agent("here")
        with Partner("there", environment={"PEERLANE_STRICT": "1"}) as partner:
            meet(agent, partner)
            both_ways(self, agent, partner)

    @unittest.skipIf(os.geteuid() != 0, "PID namespaces of one's own need root")
    def test_a_pid_namespace_of_its_own(self):
        import multiprocessing.spawn
        import sys
        with tempfile.TemporaryDirectory() as folder:
            python = os.path.join(folder, "python")
            with open(python, "w", encoding="utf-8") as file:
                file.write(f'#!/bin/sh\nexec unshare --pid --fork --kill-child --mount-proc "{sys.executable}" "$@"\n')
            os.chmod(python, stat.S_IRWXU)
            agent = make_agent("here")
            usual = multiprocessing.spawn.get_executable()
            multiprocessing.spawn.set_executable(python)
            try:
                partner = Partner("there")
            finally:
                multiprocessing.spawn.set_executable(usual)
            with partner:
                self.assertEqual(partner.run(own_pid), 1)
                meet(agent, partner)
                both_ways(self, agent, partner)


def own_pid(_far):
    return os.getpid()


if __name__ == "__main__":
    unittest.main()
