#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Guest 0 writes to guest 1, which dies meanwhile, without a goodbye. The writer has to end with an error."""

import os
import sys

import counters
import verbs_tools
from devices import meet, wait_until


def received():
    return counters.read(["rxe0"])["rcvd_pkts"]


def die(server):
    before = received()
    wait_until("writes arrive", lambda: received() > before + 1000 or not server.running())
    if server.running():
        with open("/proc/sysrq-trigger", "w", encoding="utf-8") as stream:
            stream.write("b")  # a reset, which ends the emulator
    raise RuntimeError(f"the server ended before this guest could die:\n{server.said()}")


def survive():
    meet()
    client = verbs_tools.Side(*verbs_tools.write_bandwidth("rxe0", [os.environ["PEER_ADDRESS"]], seconds=60))
    status = client.ended()
    if status == 0:
        raise RuntimeError(f"the peer died, and the writer ended with 0:\n{client.said()}")
    print(f"the writer ended with {status}:\n{client.said().strip()}")


if __name__ == "__main__":
    try:
        if os.environ["ROLE"] == "0":
            survive()
        else:
            tool = verbs_tools.start_server(*verbs_tools.write_bandwidth("rxe0", [], seconds=60))
            meet()
            die(tool)
    except RuntimeError as problem:
        sys.exit(f"survivor.py: {problem}")
