#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One fault while two devices talk over a veth pair. Usage: faults.py NAME (all names: FAULTS below).

netem harms what the end va sends, so the two ends see different halves of each fault. Every fault is proven by a
counter: without that, a test in which nothing went wrong would pass.
"""

import json
import sys

import counters
import verbs_tools
from devices import run, wait_until
from verbs_tools import both_sides, expect_success

DEVICES = ["rxva", "rxvb"]


def repaired(growth):
    """Requests that were sent again, or came out of their order."""
    return sum(growth[name] for name in ("completer_retry_err", "out_of_seq_request", "duplicate_request", "rcvd_seq_err"))


# name: (words for netem, what must have happened: growth of the devices' counters, netem's own numbers -> bool)
NETEM = {
    "loss": ("loss 2%", lambda growth, netem: netem["drops"] > 0 and repaired(growth) > 0),
    "delay": ("delay 2ms", lambda growth, netem: netem["packets"] > 0),
    "duplicate": ("duplicate 5%", lambda growth, netem: growth["duplicate_request"] > 0),
    "reorder": ("delay 1ms reorder 25% 50%", lambda growth, netem: growth["out_of_seq_request"] + growth["rcvd_seq_err"] > 0),
    "corrupt": ("corrupt 2%", lambda growth, netem: repaired(growth) > 0),
}


def netem_numbers():
    return json.loads(run("tc", "-s", "-j", "qdisc", "show", "dev", "va", "root"))[0]


def under_netem(name):
    """Messages under one fault, which ends before they do. The last acknowledgement must not be lost: the side that
    has everything ends, with its queue pair, and the other one asks for ever (rxe takes 7 tries as any number)."""
    words, happened = NETEM[name]
    run("tc", "qdisc", "add", "dev", "va", "root", "netem", *words.split())
    before = counters.read(DEVICES)
    seen, sides = {}, []

    def is_shown():
        seen["growth"], seen["netem"] = counters.grown(before, counters.read(DEVICES)), netem_numbers()
        return seen["netem"]["packets"] > 300 and happened(seen["growth"], seen["netem"])

    try:
        sides = both_sides(verbs_tools.pingpong, DEVICES, iterations=3000, size=16384)
        wait_until(f"something that shows that netem did this: {words}",
                   lambda: is_shown() or not all(side.running() for side in sides))
        # It stays until the end: taken away under traffic it has ended pairs.
        run("tc", "qdisc", "change", "dev", "va", "root", "netem", "loss", "0%", "corrupt", "0%")
        under_way = all(side.running() for side in sides)
        expect_success(*sides)
        if not under_way:
            raise RuntimeError(f"all messages had gone before netem was stopped: {words}")
    finally:
        for side in sides:
            side.kill()
        run("tc", "qdisc", "del", "dev", "va", "root")
    print(f"netem {words}: {seen['netem']['packets']} packets, {seen['netem']['drops']} dropped; counters: "
          + ", ".join(f"{key} {value}" for key, value in sorted(seen["growth"].items()) if value))


def link_down():
    """The writer ends with an error and the device says that its link is down; afterwards both work again."""
    before = counters.read(DEVICES)
    server, client = both_sides(verbs_tools.write_bandwidth, DEVICES, seconds=60)
    wait_until("writes are under way", lambda: counters.grown(before, counters.read(DEVICES))["sent_pkts"] > 1000)
    run("ip", "link", "set", "va", "down")
    status = client.ended()
    server.kill()
    if status == 0:
        raise RuntimeError(f"the link went down while it wrote, and the writer ended with 0:\n{client.said()}")
    print(f"the writer ended with {status}:\n{client.said()}")
    if "state DOWN" not in run("rdma", "link", "show", "rxva/1"):
        raise RuntimeError(f"the device does not say that its link is down: {run('rdma', 'link', 'show', 'rxva/1')}")
    # The route went with the link.
    run("ip", "link", "set", "va", "up")
    run("ip", "route", "replace", "10.5.0.2/32", "dev", "va", "src", "10.5.0.1", "table", "101")
    wait_until("the port is active again", lambda: "state ACTIVE" in run("rdma", "link", "show", "rxva/1"))
    expect_success(*both_sides(verbs_tools.pingpong, DEVICES))


FAULTS = {**{name: lambda name=name: under_netem(name) for name in NETEM}, "link_down": link_down}

if __name__ == "__main__":
    try:
        FAULTS[sys.argv[1]]()
    except (RuntimeError, OSError) as problem:
        sys.exit(f"faults.py: {problem}")
