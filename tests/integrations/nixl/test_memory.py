# SPDX-License-Identifier: Apache-2.0
"""The plug-in's options, and what an agent registers."""

import mmap
import socket
import unittest

import numpy as np

import agents
from agents import Memory, make_agent, transfer

BLOCK = 4096


class Options(unittest.TestCase):
    def test_are_listed(self):
        agent = agents.nixl_agent("options", agents.nixl_agent_config(backends=[]))
        self.assertIn(agents.BACKEND, agent.get_plugin_list())
        self.assertEqual(sorted(agent.get_plugin_mem_types(agents.BACKEND)), ["DRAM_SEG", "VRAM_SEG"])
        self.assertEqual(agent.get_plugin_params(agents.BACKEND),
                         {"listen": "", "connect_timeout_ms": "5000", "drain_timeout_ms": "10000", "copy_threads": "0"})

    def test_are_checked(self):
        for params in ({"wings": "2"}, {"connect_timeout_ms": "soon"}, {"drain_timeout_ms": "0"},
                       {"listen": "nowhere:x"}):
            with self.subTest(params=params), self.assertRaises(Exception):
                make_agent("options", params)

    def test_the_version_is_published(self):
        agent = make_agent("options", {"drain_timeout_ms": "2000"})
        params = agent.get_backend_params(agents.BACKEND)
        self.assertRegex(params["peerlane_version"], r"^\d+\.\d+\.\d+$")
        self.assertEqual(params["drain_timeout_ms"], "2000")

    def test_a_name_that_is_too_long_is_refused(self):
        make_agent("n" * 1024)
        with self.assertRaises(Exception):
            make_agent("n" * 1025)


class Registration(unittest.TestCase):
    def setUp(self):
        self.agent = make_agent("here")

    def test_twice_overlapping_and_of_no_bytes(self):
        memory = Memory(self.agent, 4 * BLOCK, 1)
        registered = [self.agent.register_memory([piece], agents.KIND) for piece in
                      [memory.piece() + ("",), memory.piece(BLOCK, BLOCK) + ("",), memory.piece(0, 0) + ("",)]]
        target = Memory(self.agent, 4 * BLOCK)
        transfer(self.agent, "WRITE", [memory.piece()], [target.piece()], "here")
        self.assertTrue((target.bytes == 1).all())
        for each in registered:
            self.agent.deregister_memory(each)

    def test_a_thousand_at_once(self):
        place = agents.PLACES[agents.KIND](1000 * BLOCK, 0)
        at = place.address
        registered = self.agent.register_memory([(at + i * BLOCK, BLOCK, 0, "") for i in range(1000)], agents.KIND)
        source = Memory(self.agent, 1000 * BLOCK, "thousand")
        transfer(self.agent, "WRITE", [source.piece(i * BLOCK, BLOCK) for i in range(1000)],
                 [(at + i * BLOCK, BLOCK, 0) for i in range(1000)], "here")
        self.assertEqual(place.get().tobytes(), source.bytes.tobytes())
        self.agent.deregister_memory(registered)

    def test_memory_that_is_not_there_is_refused(self):
        lowest = mmap.PAGESIZE  # the kernel places no mapping here by itself
        with self.assertRaises(Exception):
            self.agent.register_memory([(lowest, BLOCK, 0, "")], "DRAM")
        Memory(self.agent, BLOCK)

    def test_memory_that_may_only_be_read_is_written_from_alone(self):
        with mmap.mmap(-1, BLOCK, prot=mmap.PROT_READ) as mapping:
            view = np.frombuffer(mapping, dtype=np.uint8)
            registered = self.agent.register_memory([(view.ctypes.data, BLOCK, 0, "")], "DRAM")
            target, kinds = Memory(self.agent, BLOCK, 1, kind="DRAM"), ("DRAM", "DRAM")
            transfer(self.agent, "WRITE", [(view.ctypes.data, BLOCK, 0)], [target.piece()], "here", kinds=kinds)
            self.assertFalse(target.bytes.any())
            for operation, near, there in (("READ", (view.ctypes.data, BLOCK, 0), target.piece()),
                                           ("WRITE", target.piece(), (view.ctypes.data, BLOCK, 0))):
                with self.assertRaisesRegex(Exception, "NOT_ALLOWED"):
                    transfer(self.agent, operation, [near], [there], "here", kinds=kinds)
            self.agent.deregister_memory(registered)
            del view

    def test_a_port_of_its_own(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        agent = make_agent("port", {"listen": f"127.0.0.1:{port}"})
        one, two = Memory(agent, BLOCK, 1), Memory(agent, BLOCK, 2)
        transfer(agent, "WRITE", [one.piece()], [two.piece()], "port")
        self.assertTrue((two.bytes == 1).all())

    def test_memory_of_no_gpu_is_no_vram(self):
        buffer = np.zeros(BLOCK, dtype=np.uint8)
        with self.assertRaises(Exception):
            self.agent.register_memory([(buffer.ctypes.data, BLOCK, 0, "")], "VRAM")

    def test_is_queried(self):
        memory = Memory(self.agent, BLOCK)
        known, unknown = self.agent.query_memory([memory.piece() + ("",), (16, 8, 0, "")], agents.BACKEND, agents.KIND)
        self.assertEqual(known["device"], {"DRAM": "host:0", "VRAM": "cuda:0"}[agents.KIND])
        self.assertEqual(known["mapped_by_peers"], {"DRAM": "no", "VRAM": "yes"}[agents.KIND])
        self.assertEqual(known["released_transfers_move"], "no")
        self.assertIsNone(unknown)


if __name__ == "__main__":
    unittest.main()
