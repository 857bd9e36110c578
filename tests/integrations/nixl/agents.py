# SPDX-License-Identifier: Apache-2.0
"""Agents of NIXL for the tests, each with the back end PEERLANE alone, here or in processes of their own.

The environment names the wheel's folder (NIXL_WHEEL) and the command line (NIXL_TEST_PROGRAM); nixl_tests.py sets both.
"""

import contextlib
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.environ["NIXL_WHEEL"])

import numpy as np  # noqa: E402
from nixl_cu12._api import nixl_agent, nixl_agent_config  # noqa: E402

BACKEND = "PEERLANE"
SOON = 20  # seconds


def make_agent(name, params=None, **config):
    agent = nixl_agent(name, nixl_agent_config(backends=[], **config))
    agent.create_backend(BACKEND, params or {})
    return agent


class Memory:
    """Host memory that an agent registered; `fill` is a byte, or a seed of random ones where it is given as text."""

    def __init__(self, agent, size, fill=0, device=0):
        self.agent, self.size, self.device = agent, size, device
        if isinstance(fill, str):
            self.bytes = np.random.default_rng(sum(fill.encode())).integers(0, 256, size, dtype=np.uint8)
        else:
            self.bytes = np.full(size, fill, dtype=np.uint8)
        self.address = self.bytes.ctypes.data
        self.registered = agent.register_memory([(self.address, size, device, "")], "DRAM")

    def piece(self, offset=0, size=None):
        return (self.address + offset, self.size - offset if size is None else size, self.device)

    def deregister(self):
        self.agent.deregister_memory(self.registered)


def live_params(agent):
    """The back end's parameters now; get_backend_params() gives those of its creation."""
    return agent.agent.getBackendParams(agent.backends[BACKEND])[0]


def finish(agent, handle, seconds=SOON):
    """Waits for a posted transfer; returns "DONE" or raises."""
    end = time.monotonic() + seconds
    while True:
        state = agent.check_xfer_state(handle)
        if state == "DONE":
            return state
        if state == "ERR":
            raise RuntimeError("the transfer failed")
        if time.monotonic() > end:
            raise TimeoutError(f"{state} after {seconds} s")


def transfer(agent, operation, local, remote, other, message=b""):
    """Moves pieces of DRAM and waits."""
    handle = agent.initialize_xfer(operation, agent.get_xfer_descs(local, "DRAM"),
                                   agent.get_xfer_descs(remote, "DRAM"), other, message)
    if agent.transfer(handle) != "DONE":
        finish(agent, handle)
    agent.release_xfer_handle(handle)


def wait_for(what, seconds=SOON):
    """The first true value of what()."""
    end = time.monotonic() + seconds
    while True:
        value = what()
        if value:
            return value
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.001)


def take_notifications(agent, count, seconds=SOON):
    """{name: [messages]}, once that many have come."""
    taken = {}

    def enough():
        for name, messages in agent.get_new_notifs().items():
            taken.setdefault(name, []).extend(messages)
        return sum(map(len, taken.values())) >= count

    wait_for(enough, seconds)
    return taken


def doctor(pid=None):
    """The dump and the counters of a process, as `peerlane doctor` prints them."""
    return subprocess.run([os.environ["NIXL_TEST_PROGRAM"], "doctor", "--pid", str(pid or os.getpid())],
                          capture_output=True, text=True, check=True).stdout


def bytes_by_link(pid=None):
    """Payload bytes that the process moved, by link, as the library counted them."""
    said = doctor(pid)
    moved = {}
    for link, count in re.findall(r'peerlane_bytes_total\{link="(\w+)".*?\} (\d+)', said):
        moved[link] = moved.get(link, 0) + int(count)
    return moved


def pending(pid=None):
    """How many operations the contexts of a process have under way."""
    said = doctor(pid)
    return sum(map(int, re.findall(r"^ *pending: (\d+)$", said, re.MULTILINE)))


@contextlib.contextmanager
def frozen(partner):
    """The partner's process is stopped meanwhile."""
    os.kill(partner.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(partner.pid, signal.SIGCONT)


class Far:
    """What lives in the process of a Partner."""

    def __init__(self, agent):
        self.agent = agent
        self.memories = {}


def _serve(connection, name, params, config):
    far = Far(make_agent(name, params, **config))
    connection.send("ready")
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            break
        try:
            connection.send((function(far, *arguments), None))
        except Exception as error:  # the test wants to see it
            connection.send((None, f"{type(error).__name__}: {error}"))
    far.memories.clear()
    del far


class Partner:
    """An agent in a process of its own. `run(function, ...)` calls function(far, ...) there."""

    def __init__(self, name, params=None, environment=None, **config):
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, name, params, config), daemon=True)
        with _environment(environment or {}):
            self.process.start()
        theirs.close()
        self.name = name
        if not self.connection.poll(60) or self.connection.recv() != "ready":
            raise RuntimeError("the partner did not start")

    def post(self, function, *arguments):
        self.connection.send((function, arguments))

    def answer(self, seconds=60):
        if not self.connection.poll(seconds):
            raise TimeoutError("the partner does not answer")
        value, error = self.connection.recv()
        if error:
            raise RuntimeError(error)
        return value

    def run(self, function, *arguments):
        self.post(function, *arguments)
        return self.answer()

    @property
    def pid(self):
        return self.process.pid

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        self.process.join()

    def close(self):
        self.connection.close()
        self.process.join(20)
        if self.process.is_alive():
            self.kill()
            raise RuntimeError("the partner did not end")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.is_alive():
            self.close()


@contextlib.contextmanager
def _environment(changes):
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# For Partner.run.


def allocate(far, label, size, fill=0, device=0):
    """Returns the piece: address, size, device."""
    far.memories[label] = Memory(far.agent, size, fill, device)
    return far.memories[label].piece()


def metadata(far):
    return far.agent.get_agent_metadata()


def add(far, blob):
    return far.agent.add_remote_agent(blob)


def content(far, label, offset=0, size=None):
    memory = far.memories[label]
    end = memory.size if size is None else offset + size
    return memory.bytes[offset:end].tobytes()


def notifications(far, count, seconds=SOON):
    return take_notifications(far.agent, count, seconds)


def meet(agent, partner):
    """Both add each other."""
    name = agent.add_remote_agent(partner.run(metadata))
    partner.run(add, agent.get_agent_metadata())
    return name if isinstance(name, str) else name.decode()
