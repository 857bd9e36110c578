# SPDX-License-Identifier: Apache-2.0
"""Peers that come, go, die and fall silent; requests that are released while bytes move; bad metadata."""

import contextlib
import random
import re
import threading
import time
import unittest

import numpy as np

import agents
from agents import Memory, Partner, finish, make_agent, meet, transfer

BLOCK = 4096
LARGE = 1 << 30
# Slow ways, on which a transfer is still under way when the test acts.
WAYS = {
    "ring": ({"PEERLANE_SHM_ENGINE": "ring"}, {}),
    "tcp": ({"PEERLANE_LINKS": "self,tcp"}, {"listen": "127.0.0.1:0"}),
}
if agents.KIND == "VRAM":
    del WAYS["ring"]


def fill(far, label, value):
    far.memories[label].set(value)


def write_back(far, label, target, other):
    transfer(far.agent, "WRITE", [far.memories[label].piece()], [target], other)


def ends_of(text, blob):
    """The places after each `text`. What NIXL itself put between them it reads without a check, so tests leave it."""
    return [match.end() for match in re.finditer(re.escape(text), blob)]


def released_transfers_move(agent, memory):
    return agent.query_memory([memory.piece() + ("",)], agents.BACKEND, memory.place.kind)[0]["released_transfers_move"]


def settled(memory, seconds=1.0):
    """Whether not one byte changes for so long."""
    before = memory.bytes.copy()
    time.sleep(seconds)
    return bool((before == memory.bytes).all())


class Pairs(unittest.TestCase):
    def setUp(self):
        self.settings = contextlib.ExitStack()
        self.addCleanup(self.settings.close)

    def pair(self, name="there", way=None, timeout=None, **more):
        environment, params = WAYS[way] if way else ({}, {})
        environment, params = dict(environment), params | more
        if timeout:
            environment["PEERLANE_PEER_TIMEOUT"] = timeout
        # Until the next pair: a GPU's context is made when its first memory is registered.
        self.settings.close()
        self.settings.enter_context(agents._environment(environment))
        agent = make_agent("here", params)
        partner = Partner(name, params, environment)
        self.addCleanup(lambda: partner.process.is_alive() and partner.kill())
        meet(agent, partner)
        return agent, partner

    def started(self, agent, partner, operation, size, kind=agents.KIND):
        """A posted transfer of that size, its memory, and its handle."""
        memory, kinds = Memory(agent, size, 1, kind=kind), (kind, kind)
        far = partner.run(agents.allocate, "far", size, 2, 0, kind)
        agent.add_remote_agent(partner.run(agents.metadata))
        # Imported, so that bytes move from the first moment.
        transfer(agent, "READ", [memory.piece(0, 8)], [(far[0], 8, 0)], partner.name, kinds=kinds)
        handle = agents.request(agent, operation, [memory.piece()], [far], partner.name, kinds=kinds)
        self.assertEqual(agent.transfer(handle), "PROC")
        return memory, handle


class Peers(Pairs):
    def test_one_that_restarts_under_its_name_is_found_again(self):
        agent, partner = self.pair()
        memory = Memory(agent, BLOCK, "restart")
        for _ in range(3):
            far = partner.run(agents.allocate, "far", BLOCK)
            agent.add_remote_agent(partner.run(agents.metadata))
            transfer(agent, "WRITE", [memory.piece()], [far], "there", b"again")
            self.assertEqual(partner.run(agents.content, "far"), memory.bytes.tobytes())
            self.assertEqual(partner.run(agents.notifications, 1), {"here": [b"again"]})
            partner.kill()
            agent.remove_remote_agent("there")
            partner = Partner("there")
            self.addCleanup(partner.close)
            meet(agent, partner)

    def test_one_that_is_killed_fails_the_transfer(self):
        for way in WAYS:
            for operation in ("WRITE", "READ"):
                with self.subTest(way=way, operation=operation):
                    agent, partner = self.pair(way=way, timeout="5s")
                    memory, handle = self.started(agent, partner, operation, LARGE // 4)
                    partner.kill()
                    with self.assertRaisesRegex(Exception, "DISCONNECT"):
                        finish(agent, handle, 15)
                    agent.release_xfer_handle(handle)
                    memory.deregister()
                    self.assertTrue(settled(memory, 0.2))
                    # Nobody else is disturbed.
                    own = [Memory(agent, BLOCK, 1), Memory(agent, BLOCK, 2)]
                    transfer(agent, "WRITE", [own[0].piece()], [own[1].piece()], "here")

    def test_one_that_falls_silent_fails_the_transfer_in_time(self):
        agent, partner = self.pair(way="tcp", timeout="2s")
        memory, handle = self.started(agent, partner, "READ", LARGE // 4)
        with agents.frozen(partner):
            with self.assertRaisesRegex(Exception, "DISCONNECT"):
                finish(agent, handle, 20)

    def test_silence_is_noticed_by_one_who_rarely_asks(self):
        agent, partner = self.pair(way="tcp", timeout="2s")
        _, handle = self.started(agent, partner, "WRITE", LARGE // 4)
        with agents.frozen(partner):
            begin = time.monotonic()
            with self.assertRaisesRegex(Exception, "DISCONNECT"):
                while time.monotonic() - begin < 60:
                    time.sleep(0.5)
                    agent.check_xfer_state(handle)

    def test_messages_to_one_that_is_frozen_arrive_when_it_goes_on(self):
        agent, partner = self.pair()
        with agents.frozen(partner):
            for i in range(3000):
                agent.send_notif("there", b"%d" % i)
        self.assertEqual(partner.run(agents.notifications, 3000), {"here": [b"%d" % i for i in range(3000)]})

    def test_what_was_sent_arrives_although_its_sender_goes(self):
        for way in [None, "tcp"]:
            with self.subTest(way=way):
                agent, partner = self.pair(way=way)
                for i in range(200):
                    agent.send_notif("there", b"%d" % i)
                agent.remove_remote_agent("there")
                self.assertEqual(partner.run(agents.notifications, 200), {"here": [b"%d" % i for i in range(200)]})

    def test_a_ticket_that_is_no_ticket_is_not_followed(self):
        partner = Partner("words")
        self.addCleanup(partner.close)
        good = partner.run(agents.metadata)
        at = good.index(b"PLNX\1C") + 6
        length = good[at] + (good[at + 1] << 8)
        for ticket in (b"-", b"@/etc/hostname", b"env:HOME"):
            blob = good[:at + 2] + ticket.ljust(length, b"x") + good[at + 2 + length:]
            with self.assertRaises(Exception):
                make_agent("here").add_remote_agent(blob)

    def test_metadata_loaded_again_and_more_of_it(self):
        agent, partner = self.pair()
        memory = Memory(agent, BLOCK, 7)
        for i in range(4):
            far = partner.run(agents.allocate, f"far{i}", BLOCK)
            blob = partner.run(agents.metadata)
            for _ in range(2):
                agent.add_remote_agent(blob)
            transfer(agent, "WRITE", [memory.piece()], [far], "there")
            self.assertEqual(set(partner.run(agents.content, f"far{i}")), {7})

    def test_metadata_that_is_damaged_is_refused(self):
        agent, partner = self.pair("other")
        partner.run(agents.allocate, "far", BLOCK)
        good = partner.run(agents.metadata)
        random.seed(1)
        ours = [at for begin in ends_of(b"PLNX", good) for at in range(begin - 4, begin + 64)]
        self.assertGreater(len(ours), 100)
        for i in range(300):
            blob = bytearray(good)
            for _ in range(random.randrange(1, 9)):
                blob[random.choice(ours)] = random.randrange(256)
            stranger = make_agent(f"stranger{i}") if i % 50 == 0 else stranger
            try:
                stranger.add_remote_agent(bytes(blob))
            except Exception:
                pass  # any of NIXL's errors; what counts is that all goes on
        memory = Memory(agent, BLOCK, 9)
        far = partner.run(agents.allocate, "far2", BLOCK)
        agent.add_remote_agent(partner.run(agents.metadata))
        transfer(agent, "WRITE", [memory.piece()], [far], "other")

    def test_metadata_of_a_later_version_is_refused(self):
        partner = Partner("later")
        self.addCleanup(partner.close)
        partner.run(agents.allocate, "far", BLOCK)
        good = partner.run(agents.metadata)
        for kind in (b"C", b"M"):
            self.assertIn(b"PLNX\1" + kind, good)
            with self.assertRaises(Exception):
                make_agent("here").add_remote_agent(good.replace(b"PLNX\1" + kind, b"PLNX\2" + kind))
        make_agent("here").add_remote_agent(good)

    def test_an_agent_that_cannot_be_reached_has_no_back_end_in_common(self):
        partner = Partner("gone")
        partner.run(agents.allocate, "far", BLOCK)
        blob = partner.run(agents.metadata)
        partner.close()
        agent = make_agent("here", {"connect_timeout_ms": "500"})
        with self.assertRaises(Exception):
            agent.add_remote_agent(blob)

    def test_requests_outlive_the_agent_that_was_removed(self):
        agent, partner = self.pair()
        memory = Memory(agent, BLOCK, 5)
        far = partner.run(agents.allocate, "far", BLOCK)
        agent.add_remote_agent(partner.run(agents.metadata))
        handle = agents.request(agent, "WRITE", [memory.piece()], [far], "there")
        agent.transfer(handle)
        agent.remove_remote_agent("there")
        try:
            agent.release_xfer_handle(handle)
        except Exception:  # it was under way; now nothing is
            agents.wait_for(lambda: agents.pending() == 0)
            agent.release_xfer_handle(handle)
        meet(agent, partner)
        transfer(agent, "WRITE", [memory.piece()], [far], "there")

    def test_many_threads_post_at_once(self):
        agent, partner = self.pair()
        far = partner.run(agents.allocate, "far", 8 * BLOCK)
        agent.add_remote_agent(partner.run(agents.metadata))
        failures = []

        def work(i):
            try:
                memory = memories[i]
                for _ in range(50):
                    transfer(agent, "WRITE", [memory.piece()], [(far[0] + i * BLOCK, BLOCK, 0)], "there")
            except Exception as error:
                failures.append(error)

        memories = [Memory(agent, BLOCK, i + 1) for i in range(8)]
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        got = np.frombuffer(partner.run(agents.content, "far"), dtype=np.uint8).reshape(8, BLOCK)
        self.assertTrue((got == np.arange(1, 9, dtype=np.uint8)[:, None]).all())


class Release(Pairs):
    def test_of_a_write_while_bytes_move_is_refused_until_none_does(self):
        for way in WAYS:
            with self.subTest(way=way):
                agent, partner = self.pair(way=way, drain_timeout_ms="60000")
                memory, handle = self.started(agent, partner, "WRITE", LARGE)
                with agents.frozen(partner):  # it would write its memory when it goes on
                    self.refused_at_once(agent, handle)
                    self.assertEqual(released_transfers_move(agent, memory), "yes")
                agents.wait_for(lambda: released_transfers_move(agent, memory) == "no")
                agent.release_xfer_handle(handle)  # the proof
                self.check_far_untouched(partner)
                memory.deregister()
                del agent

    def test_of_a_read_does_not_wait_for_the_peer(self):
        for way in WAYS:
            with self.subTest(way=way):
                agent, partner = self.pair(way=way)
                memory, handle = self.started(agent, partner, "READ", LARGE, "DRAM")
                with agents.frozen(partner):  # this side alone writes the memory
                    try:
                        agent.release_xfer_handle(handle)
                    except Exception:  # not yet
                        agents.wait_for(lambda: released_transfers_move(agent, memory) == "no", 2)
                        agent.release_xfer_handle(handle)
                    memory.set(77)
                self.assertTrue(settled(memory))
                self.assertTrue((memory.bytes == 77).all())
                memory.deregister()
                del agent

    def test_of_a_read_from_a_peer_that_fell_silent(self):
        for way in WAYS:
            with self.subTest(way=way):
                agent, partner = self.pair(way=way, timeout="2s")
                memory, handle = self.started(agent, partner, "READ", LARGE, "DRAM")
                with agents.frozen(partner):
                    with self.assertRaisesRegex(Exception, "DISCONNECT"):
                        finish(agent, handle, 20)
                    agent.release_xfer_handle(handle)
                    agents.wait_for(lambda: released_transfers_move(agent, memory) == "no", 2)
                    memory.set(77)
                self.assertTrue(settled(memory))
                self.assertTrue((memory.bytes == 77).all())

    def refused_at_once(self, agent, handle):
        begin = time.monotonic()
        with self.assertRaisesRegex(Exception, "REPOST_ACTIVE"):
            agent.release_xfer_handle(handle)
        # clock: half of drain_timeout_ms, as these agents have it
        self.assertLess(time.monotonic() - begin, 30)

    def check_far_untouched(self, partner):
        partner.run(fill, "far", 77)
        time.sleep(1)
        self.assertEqual(set(partner.run(agents.content, "far", 0, LARGE // 8)), {77})
        self.assertEqual(set(partner.run(agents.content, "far", LARGE // 8 * 7)), {77})

    def test_deregistering_waits_for_bytes_that_move(self):
        for way in WAYS:
            with self.subTest(way=way):
                agent, partner = self.pair(way=way)
                memory, handle = self.started(agent, partner, "READ", LARGE)
                for _ in range(2):  # after the second NIXL has forgotten the request
                    try:
                        agent.release_xfer_handle(handle)
                    except Exception:
                        pass
                memory.deregister()
                memory.set(77)
                time.sleep(1)
                self.assertTrue((memory.bytes == 77).all())


if __name__ == "__main__":
    unittest.main()
