# SPDX-License-Identifier: Apache-2.0
"""The way over a NIC: two processes that have no other link, on an HCA in software.

The environment names its library (NIXL_TEST_VERBS); nixl_tests.py sets it to that of the build.
"""

import os
import unittest

import numpy as np

import agents
from agents import Partner, bytes_by_link, transfer

BLOCK = 4096
BLOCKS = 200
SIZE = 2 * BLOCK * BLOCKS


def move(far, operation, label, pieces, there, other, message=b""):
    """Between blocks of own memory, by offset, and pieces of the other's."""
    memory = far.memories[label]
    transfer(far.agent, operation, [memory.piece(at, BLOCK) for at in pieces], there, other, message)


class OverVerbs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        environment = {"PEERLANE_IBV_SO": os.environ["NIXL_TEST_VERBS"], "PEERLANE_LINKS": "self,verbs", "PEERLANE_STRICT": "1",
                       "SOFTWARE_HCA_DMABUF": "yes"}
        cls.one = Partner("one", environment=environment)
        cls.addClassCleanup(cls.one.close)
        cls.two = Partner("two", environment=environment)
        cls.addClassCleanup(cls.two.close)
        cls.pieces = [side.run(agents.allocate, "memory", SIZE, name, device)
                      for device, (name, side) in enumerate((("one", cls.one), ("two", cls.two)))]
        cls.one.run(agents.add, cls.two.run(agents.metadata))
        cls.two.run(agents.add, cls.one.run(agents.metadata))

    def contents(self):
        return [np.frombuffer(side.run(agents.content, "memory"), dtype=np.uint8).reshape(-1, BLOCK).copy()
                for side in (self.one, self.two)]

    def moves(self, operation, message=b""):
        """Scattered blocks with every byte looked at, also of those that stay, and the bytes counted as the NIC's."""
        random = np.random.default_rng(len(operation))
        near, far = (random.permutation(2 * BLOCKS)[:BLOCKS] for _ in range(2))
        address, _, device = self.pieces[1]
        expected = self.contents()
        counted = bytes_by_link(self.one.pid)
        self.one.run(move, operation, "memory", [int(at) * BLOCK for at in near],
                     [(address + int(at) * BLOCK, BLOCK, device) for at in far], "two", message)
        if operation == "WRITE":
            expected[1][far] = expected[0][near]
        else:
            expected[0][near] = expected[1][far]
        for one, other in zip(self.contents(), expected):
            self.assertTrue((one == other).all())
        grown = {link: count - counted.get(link, 0) for link, count in bytes_by_link(self.one.pid).items()}
        self.assertEqual({link: count for link, count in grown.items() if count}, {"verbs": BLOCKS * BLOCK})

    def test_blocks_are_written(self):
        self.moves("WRITE")

    def test_blocks_are_read(self):
        self.moves("READ")

    def test_a_write_notifies(self):
        self.moves("WRITE", b"they are there")
        self.assertEqual(self.two.run(agents.notifications, 1), {"one": [b"they are there"]})


if __name__ == "__main__":
    unittest.main()
