# SPDX-License-Identifier: Apache-2.0
"""Agents of NIXL for the tests, each with the back end PEERLANE alone, here or in processes of their own.

The environment names the wheel's folder (NIXL_WHEEL) and the command line (NIXL_TEST_PROGRAM); nixl_tests.py sets both.
Memory is the host's, or with NIXL_TEST_CUDA=<a CUDA runtime library> that of GPUs.
"""

import contextlib
import ctypes
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.environ["NIXL_WHEEL"])

import numpy as np  # noqa: E402

try:
    from nixl_cu12._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t  # noqa: E402, F401
except ImportError:
    from nixl_cu13._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t  # noqa: E402, F401

BACKEND = "PEERLANE"
SOON = 20  # seconds
KIND = "VRAM" if "NIXL_TEST_CUDA" in os.environ else "DRAM"


def make_agent(name, params=None, **config):
    agent = nixl_agent(name, nixl_agent_config(backends=[], **config))
    agent.create_backend(BACKEND, params or {})
    return agent


class HostBytes:
    kind = "DRAM"

    def __init__(self, size, _device):
        self.array = np.empty(size, dtype=np.uint8)
        self.address = self.array.ctypes.data

    def get(self):
        return self.array

    def set(self, values):
        self.array[:] = values


class GpuBytes:
    """Memory of a GPU. It stays until the process ends: a peer may have it mapped."""

    kind = "VRAM"
    runtime = None

    def __init__(self, size, device):
        if GpuBytes.runtime is None:
            GpuBytes.runtime = ctypes.CDLL(os.environ["NIXL_TEST_CUDA"])
        self.size = size
        self.device = device % GpuBytes.devices()
        address = ctypes.c_void_p()
        self.call("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        self.address = address.value

    @staticmethod
    def devices():
        count = ctypes.c_int()
        GpuBytes.runtime.cudaGetDeviceCount(ctypes.byref(count))
        return count.value

    def call(self, name, *arguments):
        for error in (self.runtime.cudaSetDevice(self.device), getattr(self.runtime, name)(*arguments)):
            if error:
                raise RuntimeError(f"{name}: CUDA error {error}")

    def get(self):
        array = np.empty(self.size, dtype=np.uint8)
        self.copy(array.ctypes.data, self.address)
        return array

    def set(self, values):
        array = np.empty(self.size, dtype=np.uint8)
        array[:] = values
        self.copy(self.address, array.ctypes.data)

    def copy(self, to, start):
        which_way = 4  # as the addresses tell
        self.call("cudaMemcpy", ctypes.c_void_p(to), ctypes.c_void_p(start), ctypes.c_size_t(self.size), which_way)
        self.call("cudaDeviceSynchronize")


PLACES = {"DRAM": HostBytes, "VRAM": GpuBytes}


class Memory:
    """Memory that an agent registered; `fill` as for set()."""

    def __init__(self, agent, size, fill=0, device=0, kind=KIND):
        self.agent, self.size, self.device = agent, size, device
        self.place = PLACES[kind](size, device)
        self.set(fill)
        self.address = self.place.address
        self.registered = agent.register_memory([(self.address, size, device, "")], self.place.kind)

    @property
    def bytes(self):
        """The content as it is now: the host's memory itself, a copy of a GPU's."""
        return self.place.get()

    def set(self, values):
        """One byte for all, all of them, or the seed of random ones as text."""
        if isinstance(values, str):
            values = np.random.default_rng(sum(values.encode())).integers(0, 256, self.size, dtype=np.uint8)
        self.place.set(values)

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


def request(agent, operation, local, remote, other, message=b"", kinds=(KIND, KIND)):
    """A request that was not posted yet, for pieces of memory here and there."""
    return agent.initialize_xfer(operation, agent.get_xfer_descs(local, kinds[0]),
                                 agent.get_xfer_descs(remote, kinds[1]), other, message)


def transfer(agent, operation, local, remote, other, message=b"", kinds=(KIND, KIND)):
    """Moves pieces of memory and waits."""
    handle = request(agent, operation, local, remote, other, message, kinds)
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
    # A thread of it goes on until the kernel has reached it; on a busy machine, long enough to answer.
    os.waitid(os.P_PID, partner.pid, os.WSTOPPED)
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


def allocate(far, label, size, fill=0, device=0, kind=KIND):
    """Returns the piece: address, size, device."""
    far.memories[label] = Memory(far.agent, size, fill, device, kind)
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
