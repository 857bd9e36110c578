#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What many registrations cost through NIXL, with its own UCX and with Peerlane: `peerlane bench setup` by the same steps.

    bench/peers/nixl_setup.py WHEEL [--regions 1,500,4000,16000] [--rounds N] [--mappings N] [--descriptors N] [--json FILE]

WHEEL is a folder as for nixl.py. A region is 8000 bytes of host memory. Two processes, each of them as crowded as a Python with
its libraries and a model is: 10,000 mappings and 1000 descriptors more. A row each, medians in microseconds: to register
all in one list; to load the other agent's metadata and all that it registered; the first request (make, post, wait) with a
block of each region; later ones; the same blocks in one registration; to deregister; and the first request of an agent with
itself. The receiver compares every byte.
"""

import argparse
import ctypes
import json
import multiprocessing
import os
import resource
import statistics
import sys
import time

from nixl import load, wait

BACKENDS = ("UCX", "PEERLANE")
STEPS = ("register", "load metadata", "first put", "put registered apart", "put in one registration", "deregister",
         "first put with itself")
STRIDE, BYTES = 8192, 8000
LATER = 5
PAGE = 4096


def crowd(mappings, descriptors):
    """More of both; neighbours with the same rights would be one mapping."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if mappings:
        place = libc.mmap(None, mappings * PAGE, 3, 0x22, -1, 0)  # readable and writable, private and anonymous
        for page in range(0, mappings, 2):
            if libc.mprotect(place + page * PAGE, PAGE, 1) != 0:
                raise SystemExit(f"{mappings} mappings: {os.strerror(ctypes.get_errno())}; raise vm.max_map_count")
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return [os.open("/dev/null", os.O_RDONLY) for _ in range(descriptors)]


def pieces_of(address, count):
    return [(address + i * STRIDE, BYTES, 0) for i in range(count)]


class Side:
    """An agent with `count` regions of a piece each, and as much memory in one."""

    def __init__(self, name, backend, count, options):
        nixl = load(options.wheel)  # where numpy lies, too
        import numpy
        self.keep = crowd(options.mappings, options.descriptors)
        self.agent, self.count = nixl.nixl_agent(name, nixl.nixl_agent_config(backends=[])), count
        self.agent.create_backend(backend, {})
        self.apart, self.in_one = (numpy.full(count * STRIDE, 1, dtype=numpy.uint8) for _ in range(2))
        self.agent.register_memory([(self.in_one.ctypes.data, self.in_one.size, 0, "")], "DRAM")
        self.registered = None

    def register(self):
        self.registered = self.agent.register_memory([(*piece, "") for piece in pieces_of(self.apart.ctypes.data, self.count)],
                                                     "DRAM")

    def deregister(self):
        self.agent.deregister_memory(self.registered)


def put(agent, here, there, count, to):
    """The seconds of a request that is made anew."""
    begin = time.perf_counter()
    handle = agent.initialize_xfer("WRITE", agent.get_xfer_descs(pieces_of(here, count), "DRAM"),
                                   agent.get_xfer_descs(pieces_of(there, count), "DRAM"), to, b"")
    wait(agent, handle, agent.transfer(handle))
    took = time.perf_counter() - begin
    agent.release_xfer_handle(handle)
    return took


def timed(act):
    begin = time.perf_counter()
    answer = act()
    return time.perf_counter() - begin, answer


def target(backend, count, options, connection):
    side = Side("target", backend, count, options)
    for _ in range(options.rounds + 1):
        side.register()
        connection.send((side.agent.get_agent_metadata(), side.apart.ctypes.data, side.in_one.ctypes.data))
        value = connection.recv()
        connection.send(bool((side.apart.reshape(count, STRIDE)[:, :BYTES] == value).all()))
        connection.recv()
        side.deregister()
        connection.send(True)
    connection.recv()


def round_of(side, connection, number):
    """The seconds of each step but the last, and whether all bytes were right."""
    agent, count = side.agent, side.count
    registered, _ = timed(side.register)
    metadata, apart, in_one = connection.recv()
    loaded, _ = timed(lambda: agent.add_remote_agent(metadata))
    side.apart[:] = number + 2
    first = put(agent, side.apart.ctypes.data, apart, count, "target")
    later = [put(agent, side.apart.ctypes.data, apart, count, "target") for _ in range(LATER)]
    one = [put(agent, side.in_one.ctypes.data, in_one, count, "target") for _ in range(LATER)]
    connection.send(number + 2)
    right = connection.recv()
    agent.remove_remote_agent("target")
    connection.send(True)
    connection.recv()
    # From the one registration into the pieces.
    itself = put(agent, side.in_one.ctypes.data, side.apart.ctypes.data, count, "initiator")
    ended, _ = timed(side.deregister)
    return [registered, loaded, first, statistics.median(later), statistics.median(one), ended, itself], right


def measure(backend, count, options):
    """Median microseconds by step, and whether all bytes were right."""
    spawn = multiprocessing.get_context("spawn")
    near, far = spawn.Pipe()
    other = spawn.Process(target=target, args=(backend, count, options, far), daemon=True)
    other.start()
    far.close()  # so that its end is heard
    side = Side("initiator", backend, count, options)
    times, right = [], True
    for number in range(options.rounds + 1):
        took, was_right = round_of(side, near, number)
        right = right and was_right
        if number > 0:
            times.append(took)
    near.send(True)
    other.join(20)
    return dict(zip(STEPS, (statistics.median(each) * 1e6 for each in zip(*times)))), right


def measure_apart(backend, count, options):
    """In a process of its own, so that the crowd and what a back end leaves behind end with it."""
    spawn = multiprocessing.get_context("spawn")
    near, far = spawn.Pipe()
    process = spawn.Process(target=send_measured, args=(backend, count, options, far))
    process.start()
    far.close()
    answer = near.recv()
    process.join()
    return answer


def send_measured(backend, count, options, connection):
    connection.send(measure(backend, count, options))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel")
    parser.add_argument("--regions", default="1,500,4000,16000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mappings", type=int, default=10000)
    parser.add_argument("--descriptors", type=int, default=1000)
    parser.add_argument("--json")
    options = parser.parse_args()
    table, all_right = [], True
    print(f"{'regions':>8} {'step':26}" + "".join(f"{backend + ' us':>14}" for backend in BACKENDS) + "  bytes")
    for count in (int(word) for word in options.regions.split(",")):
        found = {backend: measure_apart(backend, count, options) for backend in BACKENDS}
        right = all(was_right for _, was_right in found.values())
        all_right = all_right and right
        for step in STEPS:
            times = {backend: took[step] for backend, (took, _) in found.items()}
            table.append({"step": step, "regions": count, "right": right,
                          **{f"{backend.lower()}_us": round(value, 1) for backend, value in times.items()}})
            print(f"{count:8} {step:26}" + "".join(f"{value:14.1f}" for value in times.values())
                  + f"  {'right' if right else 'WRONG'}", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(table, file, indent=1)
    return not all_right


if __name__ == "__main__":
    sys.exit(main())
