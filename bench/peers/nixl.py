#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NIXL with its own UCX and with Peerlane, in one run: the same program, two processes, one table.

    bench/peers/nixl.py WHEEL [--memory DRAM|VRAM] [--rounds N] [--json FILE]

WHEEL is a folder where pip put nixl-cu12 and numpy (scripts/nixl_wheel.sh prints one), and where `peerlane nixl install`
placed the plug-in, so that both back ends are there. VRAM needs torch. A row is a request made anew: fresh page numbers,
make, post, wait; the median of the rounds, which take turns between the back ends. The receiver compares every byte of
the last round. The last row is 8 bytes with a notification, by a request that was made once, as its sender sees it.
"""

import argparse
import json
import multiprocessing
import statistics
import sys
import time

ROWS = [  # operation, blocks, bytes of each
    ("WRITE", 4096, 16 << 10), ("READ", 4096, 16 << 10), ("WRITE", 16384, 4 << 10), ("READ", 16384, 4 << 10),
    ("WRITE", 128, 512 << 10), ("WRITE", 1, 64 << 20), ("READ", 1, 64 << 20),
]
LARGEST = 64 << 20
NOTIFIED = 2000


def memory_of(kind, size, value):
    """An object to keep, its address, and a function that gives its bytes."""
    import numpy
    if kind == "VRAM":
        import torch
        tensor = torch.full((size,), value, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize()
        return tensor, tensor.data_ptr(), lambda: tensor.cpu().numpy()
    array = numpy.full(size, value, dtype=numpy.uint8)
    return array, array.ctypes.data, lambda: array


def fill(memory, kind, value):
    memory[:] = value
    if kind == "VRAM":
        import torch
        torch.cuda.synchronize()


def make_agent(name, backend, nixl):
    return nixl.nixl_agent(name, nixl.nixl_agent_config(backends=[backend]))


def wait(agent, handle, state):
    while state != "DONE":
        if state == "ERR":
            raise SystemExit("the transfer failed")
        state = agent.check_xfer_state(handle)


class Initiator:
    def __init__(self, backend, kind, connection, nixl):
        self.agent, self.kind, self.connection = make_agent("initiator", backend, nixl), kind, connection
        self.keep, self.address, self.bytes = memory_of(kind, 2 * LARGEST, 7)
        self.agent.register_memory([(self.address, 2 * LARGEST, 0, "")], kind)
        connection.send(self.agent.get_agent_metadata())
        metadata, self.far = connection.recv()
        self.agent.add_remote_agent(metadata)
        self.lists = {}

    def prepared(self, blocks, size):
        if (blocks, size) not in self.lists:
            here = [(self.address + i * size, size, 0) for i in range(2 * blocks)]
            there = [(self.far + i * size, size, 0) for i in range(2 * blocks)]
            self.lists[blocks, size] = (self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", here, self.kind),
                                        self.agent.prep_xfer_dlist("target", there, self.kind))
        return self.lists[blocks, size]

    def once(self, operation, blocks, size, numbers):
        """Seconds of one fresh request of half of 2 x blocks places on both sides."""
        here, there = self.prepared(blocks, size)
        begin = time.perf_counter()
        handle = self.agent.make_prepped_xfer(operation, here, numbers[0], there, numbers[1])
        wait(self.agent, handle, self.agent.transfer(handle))
        took = time.perf_counter() - begin
        self.agent.release_xfer_handle(handle)
        return took

    def notified(self):
        """Seconds of 8 bytes with a notification, again and again."""
        handle = self.agent.initialize_xfer("WRITE", self.agent.get_xfer_descs([(self.address, 8, 0)], self.kind),
                                            self.agent.get_xfer_descs([(self.far, 8, 0)], self.kind), "target", b"n")
        times = []
        for _ in range(NOTIFIED):
            begin = time.perf_counter()
            wait(self.agent, handle, self.agent.transfer(handle))
            times.append(time.perf_counter() - begin)
        self.agent.release_xfer_handle(handle)
        return statistics.median(times)

    def check(self, operation, size, numbers):
        """Whether exactly the blocks of `numbers` arrived in memory that was cleared before."""
        import numpy
        if operation == "WRITE":
            self.connection.send(("check", size, numbers[1]))
            return self.connection.recv()
        got = self.bytes()
        return bool((got.reshape(-1, size)[numbers[0]] == 9).all()) and int((got == 9).sum()) == len(numbers[0]) * size

    def clear(self):
        """The initiator's memory is 7 again and the target's 9."""
        fill(self.keep, self.kind, 7)
        self.connection.send(("clear",))
        self.connection.recv()


def target(backend, kind, connection, wheel):
    nixl = load(wheel)
    agent = make_agent("target", backend, nixl)
    keep, address, content = memory_of(kind, 2 * LARGEST, 9)
    agent.register_memory([(address, 2 * LARGEST, 0, "")], kind)
    agent.add_remote_agent(connection.recv())
    connection.send((agent.get_agent_metadata(), address))
    while True:
        word, *arguments = connection.recv()
        if word == "end":
            return
        if word == "clear":
            fill(keep, kind, 9)
            connection.send(True)
        if word == "check":
            size, numbers = arguments
            got = content()
            connection.send(bool((got.reshape(-1, size)[numbers] == 7).all())
                            and int((got == 7).sum()) == len(numbers) * size)
        agent.get_new_notifs()


def load(wheel):
    sys.path.insert(0, wheel)
    try:
        import nixl_cu12._api as nixl
    except ImportError:
        import nixl_cu13._api as nixl
    return nixl


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel")
    parser.add_argument("--memory", default="DRAM", choices=["DRAM", "VRAM"])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json")
    options = parser.parse_args()
    nixl = load(options.wheel)
    import numpy
    random = numpy.random.default_rng(1)
    spawn = multiprocessing.get_context("spawn")
    sides, processes = {}, []
    for backend in ("UCX", "PEERLANE"):
        ours, theirs = spawn.Pipe()
        processes.append(spawn.Process(target=target, args=(backend, options.memory, theirs, options.wheel), daemon=True))
        processes[-1].start()
        sides[backend] = Initiator(backend, options.memory, ours, nixl)
    table = []
    print(f"{'operation':10}{'blocks':>8}{'bytes':>10}{'UCX GB/s':>11}{'PEERLANE':>10}{'ratio':>8}  bytes")
    for operation, blocks, size in ROWS:
        times = {backend: [] for backend in sides}
        right = True
        for round_number in range(options.rounds + 1):
            numbers = [random.permutation(2 * blocks)[:blocks].astype(numpy.int32) for _ in range(2)]
            last = round_number == options.rounds
            for backend, side in sides.items():
                if last:
                    side.clear()
                took = side.once(operation, blocks, size, numbers)
                if round_number > 0:
                    times[backend].append(took)
                if last:
                    right = right and side.check(operation, size, numbers)
        rate = {backend: blocks * size / statistics.median(all_times) / 1e9 for backend, all_times in times.items()}
        table.append({"operation": operation, "blocks": blocks, "bytes": size, "memory": options.memory,
                      "ucx_GBps": round(rate["UCX"], 3), "peerlane_GBps": round(rate["PEERLANE"], 3), "right": right})
        print(f"{operation:10}{blocks:8}{size:10}{rate['UCX']:11.2f}{rate['PEERLANE']:10.2f}"
              f"{rate['PEERLANE'] / rate['UCX']:8.2f}  {'right' if right else 'WRONG'}", flush=True)
    took = {backend: side.notified() * 1e6 for backend, side in sides.items()}
    table.append({"operation": "WRITE + notification", "blocks": 1, "bytes": 8, "memory": options.memory,
                  "ucx_us": round(took["UCX"], 2), "peerlane_us": round(took["PEERLANE"], 2)})
    print(f"8 bytes and a notification, p50: UCX {took['UCX']:.2f} us, PEERLANE {took['PEERLANE']:.2f} us")
    for side in sides.values():
        side.connection.send(("end",))
    for process in processes:
        process.join(20)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(table, file, indent=1)
    return not all(row.get("right", True) for row in table)


if __name__ == "__main__":
    sys.exit(main())
