#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One fault while two processes of our own talk over a veth pair, every byte looked at. Usage: link_faults.py NAME (all
names: FAULTS below).

The two meet over the loop-back, which no fault touches: it is the link that has to notice. As in faults.py, a counter
shows that the fault has happened.
"""

import os
import re
import sys
import time

import counters
from devices import run, wait_until
from faults import DEVICES, NETEM, netem_numbers
from verbs_tools import Side

ENDS = ("va", "vb")
ADDRESS = "127.0.0.1:23400"
SECONDS = 120
BYTES = 300000
CUT_SECONDS = 3  # the length of a cut is what is tested
PROGRAM = os.path.join(os.environ.get("BUILD", "build"), "bin", "guest_traffic")


ROUND = re.compile(r"^lane 0 round (\d+)$", re.MULTILINE)


def show(said):
    """Not as lines of this script's own: of those, one says how many bytes moved."""
    print("".join(f"  {line}\n" for text in said for line in text.splitlines()))


def numbers(pattern, text):
    return [int(number) for number in pattern.findall(text)]


class Traffic:
    """The two processes, each on a device of its own."""

    def __init__(self, *words, **environment):
        environment = {"PEERLANE_LINKS": "self,verbs", "PEERLANE_STRICT": "1"} | environment
        self.sides = [
            Side("env", f"PEERLANE_IB_HCA={device}", *(f"{name}={value}" for name, value in environment.items()),
                 PROGRAM, role, ADDRESS, *words)
            for role, device in zip(("listen", "dial"), DEVICES)]

    def rounds(self):
        """How many rounds both have said that they have seen."""
        return min(max(numbers(ROUND, side.said()), default=0) for side in self.sides)

    def wait_for_round(self, number):
        wait_until(f"round {number} is over, or a side has ended",
                   lambda: self.rounds() >= number or not all(side.running() for side in self.sides), SECONDS)
        if self.rounds() < number:
            raise RuntimeError(f"a side ended before round {number}:\n{self.said()}")

    def said(self):
        return "\n".join(f"{' '.join(side.command)}:\n{side.said()}" for side in self.sides)

    def expect_end(self, status=0):
        """Both end so; returns what each has said."""
        for side in self.sides:
            if side.ended(SECONDS) != status:
                raise RuntimeError(f"not both ended with {status}:\n{self.said()}")
        return [side.said() for side in self.sides]

    def expect_success(self):
        """All bytes arrived, and what is said to have moved is what the devices have to have seen."""
        said = self.expect_end()
        print(f"moved {sum(sum(numbers(counters.MOVED, text)) for text in said)} bytes")
        return said


def harm(end, *words):
    """Changes what netem, which is there already, does to what this end sends."""
    run("tc", "qdisc", "change", "dev", end, "root", "netem", *words)


def under_netem(name):
    words, happened = NETEM[name]
    traffic = Traffic("ROUNDS=40", f"BYTES={BYTES}")
    traffic.wait_for_round(1)
    harm("va", *words.split())
    before = counters.read(DEVICES)
    traffic.expect_success()
    growth, netem = counters.grown(before, counters.read(DEVICES)), netem_numbers()
    print(f"netem {words}: {netem['packets']} packets, {netem['drops']} dropped; counters: "
          + ", ".join(f"{key} {value}" for key, value in sorted(growth.items()) if value))
    if not happened(growth, netem):
        raise RuntimeError(f"nothing shows that netem did this: {words}")


class Cut:
    """Nothing passes in either direction, and no carrier is lost, as when a switch fails."""

    def __enter__(self):
        for end in ENDS:
            harm(end, "loss", "100%")
        return self

    def __exit__(self, *_):
        for end in ENDS:
            harm(end, "loss", "0%")


class PortDown:
    """A port goes down, and with it the route. These devices end their pairs then, at once; others wait for the port."""

    def __enter__(self):
        run("ip", "link", "set", "va", "down")
        wait_until("the port is down", lambda: "state DOWN" in run("rdma", "link", "show", "rxva/1"))
        return self

    def __exit__(self, *_):
        run("ip", "link", "set", "va", "up")
        run("ip", "route", "replace", "10.5.0.2/32", "dev", "va", "src", "10.5.0.1", "table", "101")
        wait_until("the port is active again", lambda: "state ACTIVE" in run("rdma", "link", "show", "rxva/1"))


def survived(interruption):
    """Shorter than the tries last, which is an eighth of the timeout on these devices."""
    traffic = Traffic("ROUNDS=40", f"BYTES={BYTES}", PEERLANE_PEER_TIMEOUT="120s")
    traffic.wait_for_round(10)
    with interruption():
        before = traffic.rounds()
        time.sleep(CUT_SECONDS)
        stood = traffic.rounds()
    if stood > before + 10:
        raise RuntimeError(f"the rounds went on meanwhile, from {before} to {stood}:\n{traffic.said()}")
    traffic.expect_success()


def ended(interruption):
    """Longer than the tries last: an error that says why, on both sides. Afterwards two others find each other."""
    traffic = Traffic("END=lost", f"BYTES={BYTES}", PEERLANE_PEER_TIMEOUT="4s")
    traffic.wait_for_round(10)
    with interruption():
        said = traffic.expect_end()
    show(said)
    if not all("PeerLost" in text for text in said) or not any("(status " in text for text in said):
        raise RuntimeError("not both say PeerLost, or none the status of a request")
    Traffic("ROUNDS=10", f"BYTES={BYTES}").expect_success()


def over_tcp(interruption):
    """As before, with tcp beside: what the NIC has not confirmed is made again there, and all of it arrives."""
    traffic = Traffic("ROUNDS=200", f"BYTES={BYTES}", "AGAIN=yes", PEERLANE_LINKS="self,verbs,tcp", PEERLANE_STRICT="0",
                      PEERLANE_PEER_TIMEOUT="4s")
    traffic.wait_for_round(10)
    with interruption():
        said = traffic.expect_end()
    show(said)
    if not all("link verbs failed, and others go on" in text for text in said):
        raise RuntimeError("not both went on over another link")
    print(f"moved {10 * 4 * BYTES} bytes")  # by the devices at least: two put and two got in each of ten rounds


FAULTS = {
    **{name: lambda name=name: under_netem(name) for name in NETEM},
    "cut": lambda: survived(Cut),
    "long_cut": lambda: ended(Cut),
    "long_cut_tcp": lambda: over_tcp(Cut),
    "port_down": lambda: ended(PortDown),
    "port_down_tcp": lambda: over_tcp(PortDown),
}


class Netem:
    """On both ends before anything talks, and until all is over: a packet that meets the change of a queueing discipline
    is an error for the devices, which end their pair."""

    def __enter__(self):
        for end in ENDS:
            run("tc", "qdisc", "add", "dev", end, "root", "netem", "loss", "0%")
        return self

    def __exit__(self, *_):
        for end in ENDS:
            run("tc", "qdisc", "del", "dev", end, "root")


if __name__ == "__main__":
    try:
        with Netem():
            FAULTS[sys.argv[1]]()
    except (RuntimeError, OSError) as problem:
        sys.exit(f"link_faults.py: {problem}")
