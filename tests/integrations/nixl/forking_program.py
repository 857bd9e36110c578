# SPDX-License-Identifier: Apache-2.0
"""A program with agents that forks; the child ends in the way that the command line names. Prints the child's status and
what the parent's agents do afterwards. Usage: forking_program.py WAY
"""

import gc
import os
import signal
import sys

from agents import Memory, finish, make_agent, request, take_notifications, transfer

BYTES = 1 << 16


class Agents:
    """Two agents, memory of both, a request that is posted again and again, and one that was never posted."""

    def __init__(self):
        self.near, self.far = make_agent("near"), make_agent("far")
        self.local, self.there = Memory(self.near, BYTES, 5), Memory(self.far, BYTES, 0)
        self.near.add_remote_agent(self.far.get_agent_metadata())
        self.posted = self.new_request()
        self.post()
        self.idle = self.new_request()

    def new_request(self):
        return request(self.near, "WRITE", [self.local.piece()], [self.there.piece()], "far", b"said")

    def post(self):
        if self.near.transfer(self.posted) != "DONE":
            finish(self.near, self.posted)


def is_refused(call):
    try:
        return call() == "ERR"
    except Exception:
        return True


def use(agents):
    """Whatever is not an end is refused."""
    calls = [lambda: agents.near.transfer(agents.idle), lambda: agents.near.transfer(agents.posted), agents.new_request,
             lambda: agents.near.send_notif("far", b"x"), agents.far.get_new_notifs, lambda: Memory(agents.near, BYTES, 0),
             agents.near.get_agent_metadata]
    wrong = [number for number, call in enumerate(calls[:-1]) if not is_refused(call)]
    if wrong:
        print("not refused:", wrong, flush=True)
        os._exit(3)


def anew(_agents):
    """A child may have agents of its own."""
    own = Agents()
    transfer(own.near, "WRITE", [own.local.piece()], [own.there.piece()], "far")
    assert (own.there.bytes == 5).all()


def drop(agents):
    agents.__dict__.clear()
    gc.collect()
    os._exit(0)


WAYS = {
    "exit": lambda agents: sys.exit(0),
    "_exit": lambda agents: os._exit(0),
    "end": lambda agents: None,
    "drop": drop,
    "deregister": lambda agents: agents.local.deregister(),
    "remove": lambda agents: agents.near.remove_remote_agent("far"),
    "release": lambda agents: [agents.near.release_xfer_handle(each) for each in (agents.posted, agents.idle)],
    "use": use,
    "anew": anew,
}


def main():
    agents = Agents()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a hang ends it by a signal
        WAYS[sys.argv[1]](agents)
        return
    _, status = os.waitpid(child, 0)
    print("child", status, flush=True)
    agents.there.set(0)
    agents.post()
    assert (agents.there.bytes == 5).all()
    assert take_notifications(agents.far, 2) == {"near": [b"said"] * 2}
    print("parent DONE", flush=True)


main()
