#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Traffic of our own between two guests, every byte looked at. Usage: link_pair.py rounds|death

rounds: both guests write to each other and read from each other.
death:  guest 0 has two peers, one in guest 1, one beside it; guest 1 dies. The first is reported lost within its time,
        and the second goes on meanwhile and afterwards.
"""

import os
import re
import sys

from counters import MOVED
from devices import meet, wait_until
from verbs_tools import Side

PORT = 23500
SECONDS = 200
PEER_SECONDS = 8
# An emulator that shares two processors with another one may be late by this.
LATE_SECONDS = 6
PROGRAM = os.path.join(os.environ["BUILD"], "bin", "guest_traffic")
SETTINGS = ["PEERLANE_IB_HCA=rxe0", "PEERLANE_LINKS=self,verbs", "PEERLANE_STRICT=1", f"PEERLANE_PEER_TIMEOUT={PEER_SECONDS}s",
            "PEERLANE_CONNECT_TIMEOUT=60s"]


def start(role, *words):
    address = os.environ["OWN_ADDRESS" if os.environ["ROLE"] == "0" else "PEER_ADDRESS"]
    return Side("env", *SETTINGS, PROGRAM, role, f"{address}:{PORT}", "BYTES=300000", *words)


def expect_success(side):
    if side.ended(SECONDS) != 0:
        raise RuntimeError(f"{' '.join(side.command)} failed:\n{side.said()}")
    return side.said()


def rounds():
    meet()
    said = expect_success(start("listen" if os.environ["ROLE"] == "0" else "dial", "ROUNDS=30"))
    print(f"moved {sum(map(int, MOVED.findall(said)))} bytes")


def die():
    meet()
    side = start("dial")
    wait_until("ten rounds are over", lambda: "round 10\n" in side.said() or not side.running(), SECONDS)
    if side.running():
        with open("/proc/sysrq-trigger", "w", encoding="utf-8") as stream:
            stream.write("b")  # a reset, which ends the emulator
    raise RuntimeError(f"the program ended before this guest could die:\n{side.said()}")


def survive():
    listener = start("listen", "PEERS=2", "END=lost")
    meet()
    beside = start("dial")
    said = expect_success(listener)
    expect_success(beside)
    print("".join(f"  {line}\n" for line in said.splitlines()))
    lost = re.search(r"^lane (\d) ended after round \d+, (\d+) ms later: (PeerLost|PeerSilent)", said, re.MULTILINE)
    if int(lost.group(2)) > 1000 * (PEER_SECONDS + LATE_SECONDS):
        raise RuntimeError(f"the loss was noticed after {lost.group(2)} ms; PEERLANE_PEER_TIMEOUT is {PEER_SECONDS} s")


if __name__ == "__main__":
    try:
        if sys.argv[1] == "rounds":
            rounds()
        elif os.environ["ROLE"] == "0":
            survive()
        else:
            die()
    except (RuntimeError, OSError) as problem:
        sys.exit(f"link_pair.py: {problem}")
