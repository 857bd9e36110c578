# SPDX-License-Identifier: Apache-2.0
"""Notifications: after their bytes, of any length, and never dependent on an agent that does not ask."""

import unittest

import agents
from agents import Memory, Partner, finish, make_agent, meet, take_notifications, transfer

BLOCK = 4096


def send_many(far, count, other):
    for i in range(count):
        far.agent.send_notif(other, b"%d" % i)


class Notifications(unittest.TestCase):
    def setUp(self):
        self.agent = make_agent("here")
        self.partner = Partner("there")
        meet(self.agent, self.partner)
        self.addCleanup(self.partner.close)

    def test_alone(self):
        messages = [b"", b"short", b"x" * 4000, b"y" * 4096, bytes(range(256)) * 4096]
        for message in messages:
            self.agent.send_notif("there", message)
        self.assertEqual(self.partner.run(agents.notifications, len(messages)), {"here": messages})

    def test_with_a_write_and_with_a_read(self):
        memory = Memory(self.agent, BLOCK, "sent")
        far = self.partner.run(agents.allocate, "far", BLOCK)
        self.agent.add_remote_agent(self.partner.run(agents.metadata))
        for message in (b"small", b"large" * 10_000):
            for operation in ("WRITE", "READ"):
                transfer(self.agent, operation, [memory.piece()], [far], "there", message)
                self.assertEqual(self.partner.run(agents.notifications, 1), {"here": [message]})
        self.assertEqual(self.partner.run(agents.content, "far"), memory.bytes.tobytes())

    def test_with_several_registrations_and_no_bytes(self):
        memories = [Memory(self.agent, BLOCK, i) for i in range(3)]
        far = [self.partner.run(agents.allocate, f"far{i}", BLOCK) for i in range(3)]
        self.agent.add_remote_agent(self.partner.run(agents.metadata))
        transfer(self.agent, "WRITE", [memory.piece() for memory in memories], far, "there", b"three")
        transfer(self.agent, "WRITE", [memories[0].piece(0, 0)], [(far[0][0], 0, 0)], "there", b"none")
        came = self.partner.run(agents.notifications, 2)["here"]
        self.assertEqual(sorted(came), [b"none", b"three"])  # those of two transfers are in no order

    def test_one_that_was_given_once_comes_with_every_post(self):
        memory = Memory(self.agent, BLOCK)
        far = self.partner.run(agents.allocate, "far", BLOCK)
        self.agent.add_remote_agent(self.partner.run(agents.metadata))
        handle = agents.request(self.agent, "WRITE", [memory.piece()], [far], "there", b"again")
        for message in (b"", b"", b"other", b""):
            self.agent.transfer(handle, message)
            finish(self.agent, handle)
        self.agent.release_xfer_handle(handle)
        self.assertEqual(self.partner.run(agents.notifications, 4),
                         {"here": [b"again", b"again", b"other", b"other"]})

    def test_an_agent_that_does_not_ask_holds_up_nobody(self):
        memory = Memory(self.agent, BLOCK)
        far = self.partner.run(agents.allocate, "far", BLOCK)
        self.agent.add_remote_agent(self.partner.run(agents.metadata))
        count = 5000
        for i in range(count):
            transfer(self.agent, "WRITE", [memory.piece(0, 8)], [(far[0], 8, 0)], "there", b"%d" % i)
        got = self.partner.run(agents.notifications, count)
        self.assertEqual(sorted(got["here"], key=int), [b"%d" % i for i in range(count)])

    def test_many_arrive_in_their_order(self):
        self.partner.post(send_many, 5000, "here")
        got = take_notifications(self.agent, 5000)
        self.assertEqual(got, {"there": [b"%d" % i for i in range(5000)]})
        self.partner.answer()

    def test_one_for_an_agent_that_was_not_added_is_refused(self):
        with self.assertRaisesRegex(Exception, "NOT_FOUND"):
            self.agent.send_notif("nobody", b"lost")


if __name__ == "__main__":
    unittest.main()
