# SPDX-License-Identifier: Apache-2.0
"""What only memory of GPUs has: pieces of both kinds in one transfer, and memory that PyTorch maps in segments.

These run where NIXL_TEST_CUDA names a CUDA runtime; those with PyTorch where it sees a GPU.
"""

import unittest

import agents
from agents import Memory, Partner, bytes_by_link, make_agent, meet, transfer
from test_peers import fill

SIZE = 8 << 20
PAGE = 16 << 10
SEGMENTS = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}


class BothKinds(unittest.TestCase):
    def test_between_the_host_and_a_gpu(self):
        agent = make_agent("here")
        with Partner("there") as partner:
            meet(agent, partner)
            for near, there in (("DRAM", "VRAM"), ("VRAM", "DRAM")):
                for operation in ("WRITE", "READ"):
                    with self.subTest(near=near, there=there, operation=operation):
                        self.moves(agent, partner, operation, (near, there))

    def moves(self, agent, partner, operation, kinds):
        memory = Memory(agent, SIZE, "both", kind=kinds[0])
        address, _, device = partner.run(agents.allocate, "far", SIZE, "far", 0, kinds[1])
        agent.add_remote_agent(partner.run(agents.metadata))
        expected = memory.bytes.tobytes() if operation == "WRITE" else partner.run(agents.content, "far")
        before = sum(bytes_by_link().values())
        transfer(agent, operation, [memory.piece(at, PAGE) for at in range(0, SIZE, PAGE)],
                 [(address + at, PAGE, device) for at in range(0, SIZE, PAGE)], "there", kinds=kinds)
        self.assertEqual(memory.bytes.tobytes(), expected)
        self.assertEqual(partner.run(agents.content, "far"), expected)
        self.assertEqual(sum(bytes_by_link().values()) - before, SIZE)
        memory.deregister()


class TorchBytes:
    """A tensor, and others before it, so that it begins inside of what the allocator took."""

    kind = "VRAM"

    def __init__(self, size, device):
        import torch
        device = f"cuda:{device % torch.cuda.device_count()}"
        self.before = [torch.zeros(3 << 20, dtype=torch.uint8, device=device) for _ in range(7)]
        self.tensor = torch.zeros(size, dtype=torch.uint8, device=device)
        self.address = self.tensor.data_ptr()

    def get(self):
        return self.tensor.cpu().numpy()

    def set(self, values):
        import numpy
        import torch
        self.tensor.copy_(torch.from_numpy(numpy.full(self.tensor.numel(), 0, dtype=numpy.uint8) + values))
        torch.cuda.synchronize()


agents.PLACES["torch"] = TorchBytes


class Segments(unittest.TestCase):
    """Both sides in processes of their own: PyTorch reads how it shall allocate once."""

    def test_of_pytorch_that_can_grow(self):
        with Partner("one", environment=SEGMENTS) as one, Partner("two", environment=SEGMENTS) as two:
            size = 96 << 20
            near = one.run(allocate_tensor, "near", size, "near", 0)
            there = two.run(allocate_tensor, "there", size, "there", 1)
            two.run(agents.add, one.run(agents.metadata))
            one.run(agents.add, two.run(agents.metadata))
            for operation in ("WRITE", "READ"):
                count = size // PAGE
                one.run(move_pages, operation, near, there, count)
                first = agents.np.frombuffer(one.run(agents.content, "near"), dtype=agents.np.uint8)
                second = agents.np.frombuffer(two.run(agents.content, "there"), dtype=agents.np.uint8)
                self.assertTrue((first == second).all())
                self.assertGreater(first.max(), 0)
                two.run(fill, "there", "another")
            self.assertEqual(list(one.run(moved)), ["cuda_ipc"])


def move_pages(far, operation, near, there, count):
    transfer(far.agent, operation, [(near[0] + i * PAGE, PAGE, near[2]) for i in range(count)],
             [(there[0] + i * PAGE, PAGE, there[2]) for i in range(count)], "two", kinds=("VRAM", "VRAM"))


def allocate_tensor(*arguments):
    return agents.allocate(*arguments, "torch")  # from here, so that the other process imports this file, too


def moved(_far):
    return {link: count for link, count in bytes_by_link().items() if count}


def sees_a_gpu():
    try:
        import torch
        return torch.cuda.is_available()
    except ImportError:
        return False


def load_tests(loader, _tests, _pattern):
    suite = unittest.TestSuite()
    if agents.KIND == "VRAM":
        suite.addTests(loader.loadTestsFromTestCase(BothKinds))
        if sees_a_gpu():
            suite.addTests(loader.loadTestsFromTestCase(Segments))
    return suite


if __name__ == "__main__":
    unittest.main()
