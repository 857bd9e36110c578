// SPDX-License-Identifier: Apache-2.0
//
// A module for Python that takes the place of nixl_cu12: one process writes into the memory of
// another one. Of FAKE_NIXL: "gap" writes one byte too many into each block, "nothing" writes
// none, "die" ends the receiver by a signal, "other" says that another
// back end carried it, "two" sends the notification twice.
#pragma once

namespace peerlane {

inline constexpr const char* kFakeNixl = R"(
import ctypes, os, signal

wish = os.environ.get("FAKE_NIXL", "")


def path(pid):
    return os.path.join(os.environ["FAKE_FOLDER"], str(pid))


class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class nixl_agent_config:
    def __init__(self, backends):
        self.backends = backends


class nixl_agent:
    def __init__(self, name, config):
        self.name = name
        self.backends = {backend: 1 for backend in config.backends}
        self.agent = self

    def register_memory(self, regions, kind):
        assert kind == "DRAM" and sorted(device for _, _, device, _ in regions) == [0, 1]

    def get_agent_metadata(self):
        if wish == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return ("%d:%s" % (os.getpid(), self.name)).encode()

    def add_remote_agent(self, metadata):
        pid, name = metadata.decode().split(":")
        self.pid = int(pid)
        return name

    def prep_xfer_dlist(self, agent, pieces, kind):
        return pieces

    def make_prepped_xfer(self, operation, local, here, remote, there, message):
        assert operation == "WRITE" and len(here) == len(there) == 128
        return [(local[a], remote[b]) for a, b in zip(here, there)], message

    def tell(self, message):
        with open(path(self.pid) + ".part", "wb") as file:
            file.write(message)
        os.rename(path(self.pid) + ".part", path(self.pid))

    def transfer(self, request):
        pairs, message = request
        more = 1 if wish == "gap" else 0
        for (start, length, device), (target, _, _) in [] if wish == "nothing" else pairs:
            source, sink = Piece(start, length + more), Piece(target, length + more)
            ctypes.memset(start + length, 1, more)
            written = ctypes.CDLL(None, use_errno=True).process_vm_writev(
                self.pid, ctypes.byref(source), 1, ctypes.byref(sink), 1, 0)
            assert written == length + more, os.strerror(ctypes.get_errno())
        self.tell(message)
        return "PROC"

    def check_xfer_state(self, request):
        return "DONE"

    def get_new_notifs(self):
        if not os.path.exists(path(os.getpid())):
            return {}
        with open(path(os.getpid()), "rb") as file:
            message = file.read()
        os.remove(path(os.getpid()))
        return {"sender": [message] * (2 if wish == "two" else 1)}

    def query_xfer_backend(self, request):
        return "UCX" if wish == "other" else "PEERLANE"

    def getBackendParams(self, handle):
        return {"peerlane_version": "0.1.0", "route.peerlane-check-receiver-%d" % self.pid: "a route"}, []

    def release_xfer_handle(self, request):
        pass
)";

}  // namespace peerlane
