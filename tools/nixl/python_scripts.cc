// SPDX-License-Identifier: Apache-2.0
#include "tools/nixl/python_scripts.h"

namespace peerlane {

// A module in the folder in which the command was started is none of this Python.
const char* const kScriptBegin = R"(import os, sys

sys.path[:] = [place for place in sys.path if place]


def say(*cells):
    line = "\t".join(str(cell).replace("\t", " ").replace("\n", " ") for cell in cells)
    os.write(1, os.fsencode("peerlane-nixl\t" + line + "\n"))

)";

const PythonScript kFindWheels{"wheels", R"(
import importlib.metadata, importlib.util

say("python", sys.version.split()[0])
for module in ("nixl_cu12", "nixl_cu13"):
    found = importlib.util.find_spec(module)
    if found is None or not found.submodule_search_locations:
        continue
    try:
        version = importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        version = "of unknown version"
    say("wheel", module, version, os.path.dirname(os.path.abspath(found.submodule_search_locations[0])))
)",
                               std::chrono::seconds(60)};

const PythonScript kReadApiVersion{"api-version", R"(
import ctypes

for path in sys.argv[2:]:
    try:
        begin = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL).nixl_plugin_init
        begin.restype = ctypes.c_void_p
        say("api", ctypes.c_int.from_address(begin()).value)
        break
    except Exception as error:
        say("failed", error)
)",
                                   std::chrono::seconds(60)};

// Both processes come about before anything of NIXL is loaded, and end by an alarm at the latest.
const PythonScript kTryTransfer{"transfer", R"(
import ctypes, importlib, signal, time
from multiprocessing import Pipe

NAME = "PEERLANE"
MODULE = sys.argv[2]
BLOCK = 4096
STRIDE = 3 * BLOCK
BLOCKS = 64
DEVICES = (0, 1)
MESSAGE = b"peerlane nixl check"
SECONDS = 30
step = "start"


def at(text):
    global step
    step = text
    if child != 0:
        say("step", text)


# No byte is zero, and no two blocks are equal.
def pattern(device):
    begin = 101 * device
    return (bytes(range(1, 256)) * (BLOCK * BLOCKS // 255 + 2))[begin:begin + BLOCK * BLOCKS]


def make_agent(role):
    at("import " + MODULE)
    nixl = importlib.import_module(MODULE)
    at("load")
    agent = nixl.nixl_agent("peerlane-check-%s-%d" % (role, os.getpid()), nixl.nixl_agent_config(backends=[NAME]))
    if NAME not in agent.backends:
        raise RuntimeError("the agent came up without " + NAME)
    return agent


def register(agent):
    at("register memory")
    buffers = {device: (ctypes.c_ubyte * (STRIDE * BLOCKS))() for device in DEVICES}
    starts = {device: ctypes.addressof(buffer) for device, buffer in buffers.items()}
    agent.register_memory([(start, STRIDE * BLOCKS, device, "") for device, start in starts.items()], "DRAM")
    return buffers, starts


def pieces(starts):
    return [(start + block * STRIDE, BLOCK, device) for device, start in starts.items() for block in range(BLOCKS)]


def take(pipe):
    if not pipe.poll(SECONDS):
        raise RuntimeError("the receiving process did not answer within %d s" % SECONDS)
    try:
        word, value = pipe.recv()
    except EOFError:
        raise RuntimeError("the receiving process ended")
    if word == "failed":
        raise RuntimeError("the receiving process, step \"%s\", %s" % value)
    return value


def wait(what, done):
    end = time.monotonic() + SECONDS
    while not done():
        if time.monotonic() > end:
            raise RuntimeError("%s did not come within %d s" % (what, SECONDS))
        time.sleep(0.001)


def wrong_bytes(buffers):
    wrong = 0
    for device, buffer in buffers.items():
        found, sent = bytes(buffer), pattern(device)
        for block in range(BLOCKS):
            expected = sent[block * BLOCK:(block + 1) * BLOCK] + bytes(STRIDE - BLOCK)
            got = found[block * STRIDE:(block + 1) * STRIDE]
            if got != expected:
                wrong += sum(a != b for a, b in zip(got, expected))
    return wrong


def receive(pipe):
    agent = make_agent("receiver")
    buffers, starts = register(agent)
    pipe.send(("memory", (agent.get_agent_metadata(), starts)))
    at("wait for the notification")
    messages = []

    def came():
        for texts in agent.get_new_notifs().values():
            messages.extend(texts)
        return messages

    wait("the notification", came)
    if messages != [MESSAGE]:
        raise RuntimeError("got %r instead of one notification %r" % (messages, MESSAGE))
    pipe.send(("wrong", wrong_bytes(buffers)))


def send(pipe):
    agent = make_agent("sender")
    buffers, starts = register(agent)
    for device, buffer in buffers.items():
        sent = pattern(device)
        for block in range(BLOCKS):
            ctypes.memmove(starts[device] + block * STRIDE, sent[block * BLOCK:(block + 1) * BLOCK], BLOCK)
    metadata, there = take(pipe)
    at("connect")
    other = agent.add_remote_agent(metadata)
    at("prepare")
    local = agent.prep_xfer_dlist("NIXL_INIT_AGENT", pieces(starts), "DRAM")
    remote = agent.prep_xfer_dlist(other, pieces(there), "DRAM")
    every = list(range(BLOCKS * len(DEVICES)))
    request = agent.make_prepped_xfer("WRITE", local, every, remote, every, MESSAGE)
    at("transfer")
    if agent.transfer(request) != "DONE":
        wait("the end of the transfer", lambda: agent.check_xfer_state(request) == "DONE")
    carrier = agent.query_xfer_backend(request)
    # get_backend_params() tells what was true when the back end was made, before there was a route.
    params = agent.agent.getBackendParams(agent.backends[NAME])[0]
    at("verify")
    wrong = take(pipe)
    agent.release_xfer_handle(request)
    at("end")
    say("wrong", wrong)
    say("backend", carrier)
    say("peerlane", params.get("peerlane_version", "of unknown version"))
    say("route", params.get("route." + (other if isinstance(other, str) else other.decode()), "unknown"))


os.environ["NIXL_LOG_LEVEL"] = "INFO"
here, there = Pipe()
child = os.fork()
signal.alarm(3 * SECONDS)
mine, unused = (there, here) if child == 0 else (here, there)
unused.close()
try:
    (receive if child == 0 else send)(mine)
except Exception as error:
    reason = "%s: %s" % (type(error).__name__, error)
    if child != 0:
        say("failed", reason)
    else:
        try:
            mine.send(("failed", (step, reason)))
        except OSError:
            pass  # the other has failed before
mine.close()
if child != 0:
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        say("failed", "the receiving process was killed by signal %d" % os.WTERMSIG(status))
    elif status != 0:
        say("failed", "the receiving process ended with exit code %d" % os.WEXITSTATUS(status))
)",
                                std::chrono::seconds(120)};

}  // namespace peerlane
