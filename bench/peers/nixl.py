#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NIXL with its own UCX, with Peerlane and with a back end that moves nothing: the same program, two processes, one table.

    bench/peers/nixl.py WHEEL PLUGINS [--memory DRAM|VRAM] [--pair] [--copy-threads N] [--rounds N]
                         [--json FILE]

WHEEL is a folder where pip put nixl-cu12 and numpy (scripts/nixl_wheel.sh prints one), and where `peerlane nixl install`
placed the plug-in. PLUGINS is a folder with libplugin_NOTHING.so (build/lib/nixl), which lies in the wheel during the run:
its times are what NIXL itself takes. VRAM needs torch; with --pair the target has the second GPU. A row is a request made
anew: fresh page numbers, make, post, wait; the median of all rounds, which take turns between the back ends. The processes
of the others are stopped meanwhile, for threads that poll would take their cores; so a turn is three requests, after one
that is not timed: it finds cold caches, and a GPU that worked for another process. The receiver compares every byte of the
last round. The last row is 8 bytes with a notification, by a request that was made once, as its sender sees it.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import statistics
import sys
import time

ROWS = [  # operation, blocks, bytes of each
    ("WRITE", 4096, 16 << 10), ("READ", 4096, 16 << 10), ("WRITE", 16384, 4 << 10), ("READ", 16384, 4 << 10),
    ("WRITE", 128, 512 << 10), ("WRITE", 1, 64 << 20), ("READ", 1, 64 << 20),
    # The pages of DeepSeek's compressed sparse attention as CollectiveX moves them: 16 or 64 tokens, four of them in an
    # entry of 576 bytes, and in one of 132 of the indexer. Their ceiling is the row of one block.
    ("READ", 16384, 4 * 576), ("READ", 4096, 16 * 576), ("READ", 16384, 4 * 132), ("READ", 16384, 16 * 132),
]
BACKENDS = ("UCX", "PEERLANE", "NOTHING")
REQUESTS = 4  # of one turn
LARGEST = 64 << 20
NOTIFIED = 2000


def memory_of(kind, size, value, gpu=0):
    """An object to keep, its address, and a function that gives its bytes."""
    import numpy
    if kind == "VRAM":
        import torch
        tensor = torch.full((size,), value, dtype=torch.uint8, device=f"cuda:{gpu}")
        torch.cuda.synchronize(gpu)
        return tensor, tensor.data_ptr(), lambda: tensor.cpu().numpy()
    array = numpy.full(size, value, dtype=numpy.uint8)
    return array, array.ctypes.data, lambda: array


def blocks_are(content, size, numbers, value):
    """Whether these blocks have this value, and no other byte has it."""
    whole = content[:len(content) // size * size].reshape(-1, size)
    return bool((whole[numbers] == value).all()) and int((content == value).sum()) == len(numbers) * size


def fill(memory, kind, value):
    memory[:] = value
    if kind == "VRAM":
        import torch
        torch.cuda.synchronize(memory.device)


def make_agent(name, backend, copy_threads, nixl):
    agent = nixl.nixl_agent(name, nixl.nixl_agent_config(backends=[]))
    agent.create_backend(backend, {"copy_threads": str(copy_threads)} if backend == "PEERLANE" else {})
    return agent


def wait(agent, handle, state):
    while state != "DONE":
        if state == "ERR":
            raise SystemExit("the transfer failed")
        state = agent.check_xfer_state(handle)


class Initiator:
    def __init__(self, backend, options, connection, nixl):
        self.agent, self.kind = make_agent("initiator", backend, options.copy_threads, nixl), options.memory
        kind, self.connection = options.memory, connection
        self.keep, self.address, self.bytes = memory_of(kind, 2 * LARGEST, 7)
        self.agent.register_memory([(self.address, 2 * LARGEST, 0, "")], kind)
        connection.send(self.agent.get_agent_metadata())
        metadata, self.far, self.gpu = connection.recv()
        self.agent.add_remote_agent(metadata)
        self.lists = {}

    def prepared(self, blocks, size):
        if (blocks, size) not in self.lists:
            here = [(self.address + i * size, size, 0) for i in range(2 * blocks)]
            there = [(self.far + i * size, size, self.gpu) for i in range(2 * blocks)]
            self.lists[blocks, size] = (self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", here, self.kind),
                                        self.agent.prep_xfer_dlist("target", there, self.kind))
        return self.lists[blocks, size]

    def turn(self, operation, blocks, size, requests):
        """Of each request but the first: the seconds that it took to make, to post, to wait, and all of it. A request is
        half of 2 x blocks places on both sides."""
        here, there = self.prepared(blocks, size)
        times = []
        for numbers in requests:
            begin = time.perf_counter()
            handle = self.agent.make_prepped_xfer(operation, here, numbers[0], there, numbers[1])
            made = time.perf_counter()
            state = self.agent.transfer(handle)
            posted = time.perf_counter()
            wait(self.agent, handle, state)
            done = time.perf_counter()
            self.agent.release_xfer_handle(handle)
            times.append((made - begin, posted - made, done - posted, done - begin))
        return times[1:]

    def notified(self):
        """Seconds of 8 bytes with a notification, again and again."""
        handle = self.agent.initialize_xfer("WRITE", self.agent.get_xfer_descs([(self.address, 8, 0)], self.kind),
                                            self.agent.get_xfer_descs([(self.far, 8, self.gpu)], self.kind), "target", b"n")
        times = []
        for _ in range(NOTIFIED):
            begin = time.perf_counter()
            wait(self.agent, handle, self.agent.transfer(handle))
            times.append(time.perf_counter() - begin)
        self.agent.release_xfer_handle(handle)
        return statistics.median(times)

    def check(self, operation, size, numbers):
        """Whether exactly the blocks of `numbers` arrived in memory that was cleared before."""
        if operation == "WRITE":
            self.connection.send(("check", size, numbers[1]))
            return self.connection.recv()
        return blocks_are(self.bytes(), size, numbers[0], 9)

    def clear(self):
        """The initiator's memory is 7 again and the target's 9."""
        fill(self.keep, self.kind, 7)
        self.connection.send(("clear",))
        self.connection.recv()


def initiate(backend, options, to_target, connection):
    side = Initiator(backend, options, to_target, load(options.wheel))
    connection.send(True)
    while True:
        call, *arguments = connection.recv()
        if call == "end":
            to_target.send(("end",))
            return
        connection.send(getattr(side, call)(*arguments))


def target(backend, options, connection):
    kind, gpu = options.memory, int(options.pair)
    agent = make_agent("target", backend, options.copy_threads, load(options.wheel))
    keep, address, content = memory_of(kind, 2 * LARGEST, 9, gpu)
    agent.register_memory([(address, 2 * LARGEST, gpu, "")], kind)
    agent.add_remote_agent(connection.recv())
    connection.send((agent.get_agent_metadata(), address, gpu))
    while True:
        word, *arguments = connection.recv()
        if word == "end":
            return
        if word == "clear":
            fill(keep, kind, 9)
            connection.send(True)
        if word == "check":
            size, numbers = arguments
            connection.send(blocks_are(content(), size, numbers, 7))
        agent.get_new_notifs()


def load(wheel):
    sys.path.insert(0, wheel)
    try:
        import nixl_cu12._api as nixl
    except ImportError:
        import nixl_cu13._api as nixl
    return nixl


@contextlib.contextmanager
def floor_in(wheel, plugins):
    """The back end that moves nothing, in the wheel for a while: NIXL looks in one folder only."""
    folders = {plugin.parent for plugin in pathlib.Path(wheel).rglob("libplugin_PEERLANE.so")}
    if len(folders) != 1:
        raise SystemExit(f"{wheel}: libplugin_PEERLANE.so lies in {len(folders)} folders; `peerlane nixl install` places it in one")
    place = folders.pop() / "libplugin_NOTHING.so"
    shutil.copy(pathlib.Path(plugins) / place.name, place)
    try:
        yield
    finally:
        place.unlink()


class Side:
    """One back end: an initiator and a target, each in a process; both are stopped but when they are called."""

    def __init__(self, backend, options):
        spawn = multiprocessing.get_context("spawn")
        near, far = spawn.Pipe()
        self.connection, theirs = spawn.Pipe()
        self.processes = [
            spawn.Process(target=target, args=(backend, options, far), daemon=True),
            spawn.Process(target=initiate, args=(backend, options, near, theirs), daemon=True)]
        for process in self.processes:
            process.start()
        self.connection.recv()
        self.signal(signal.SIGSTOP)

    def signal(self, what):
        for process in self.processes:
            os.kill(process.pid, what)

    def call(self, name, *arguments):
        self.signal(signal.SIGCONT)
        self.connection.send((name, *arguments))
        answer = self.connection.recv()
        self.signal(signal.SIGSTOP)
        return answer

    def end(self):
        self.signal(signal.SIGCONT)
        self.connection.send(("end",))
        for process in self.processes:
            process.join(20)


class Contest:
    def __init__(self, options):
        import numpy
        self.options, self.random = options, numpy.random.default_rng(1)
        self.sides = {backend: Side(backend, options) for backend in BACKENDS}

    def row(self, operation, blocks, size):
        """Median seconds by back end: to make, to post, to wait, and in all; and whether all bytes were right at last."""
        import numpy
        times = {backend: [] for backend in self.sides}
        right = True
        for number in range(self.options.rounds + 1):
            is_last = number == self.options.rounds
            requests = [[self.random.permutation(2 * blocks)[:blocks].astype(numpy.int32) for _ in range(2)]
                        for _ in range(REQUESTS)]
            if is_last:  # one, whose bytes are compared
                requests = requests[:1]
            for backend, side in self.sides.items():
                if is_last:
                    side.call("clear")
                took = side.call("turn", operation, blocks, size, requests)
                if not is_last:
                    times[backend] += took
                elif backend != "NOTHING":
                    right = right and side.call("check", operation, size, requests[0])
        return {backend: [statistics.median(each) for each in zip(*all_times)] for backend, all_times in times.items()}, right

    def end(self):
        for side in self.sides.values():
            side.end()


def table_of(contest, memory):
    table = []
    print(f"{'operation':10}{'blocks':>8}{'bytes':>10}{'UCX GB/s':>11}{'PEERLANE':>10}{'ratio':>8}{'NIXL us':>10}{'make':>9}{'post':>9}{'wait':>9}  bytes")
    for operation, blocks, size in ROWS:
        took, right = contest.row(operation, blocks, size)
        rate = {backend: blocks * size / seconds[-1] / 1e9 for backend, seconds in took.items()}
        floor = took["NOTHING"][-1] * 1e6
        made, posted, waited, _ = (seconds * 1e6 for seconds in took["PEERLANE"])
        table.append({"operation": operation, "blocks": blocks, "bytes": size, "memory": memory,
                      "ucx_GBps": round(rate["UCX"], 3), "peerlane_GBps": round(rate["PEERLANE"], 3),
                      "nixl_us": round(floor, 1), "peerlane_us": [round(made, 1), round(posted, 1), round(waited, 1)],
                      "right": right})
        print(f"{operation:10}{blocks:8}{size:10}{rate['UCX']:11.2f}{rate['PEERLANE']:10.2f}"
              f"{rate['PEERLANE'] / rate['UCX']:8.2f}{floor:10.1f}{made:9.1f}{posted:9.1f}{waited:9.1f}"
              f"  {'right' if right else 'WRONG'}", flush=True)
    took = {backend: side.call("notified") * 1e6 for backend, side in contest.sides.items()}
    table.append({"operation": "WRITE + notification", "blocks": 1, "bytes": 8, "memory": memory,
                  **{f"{backend.lower()}_us": round(microseconds, 2) for backend, microseconds in took.items()}})
    print("8 bytes and a notification, p50: " + ", ".join(f"{name} {us:.2f} us" for name, us in took.items()))
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel")
    parser.add_argument("plugins")
    parser.add_argument("--memory", default="DRAM", choices=["DRAM", "VRAM"])
    parser.add_argument("--pair", action="store_true")
    parser.add_argument("--copy-threads", type=int, default=0, help="the option of Peerlane's back end")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json")
    options = parser.parse_args()
    with floor_in(options.wheel, options.plugins):
        load(options.wheel)
        contest = Contest(options)
        table = table_of(contest, options.memory)
        contest.end()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(table, file, indent=1)
    return not all(row.get("right", True) for row in table)


if __name__ == "__main__":
    sys.exit(main())
