#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Guest 0 writes to guest 1, which dies meanwhile, without a goodbye. The writer has to end with an error."""

import os
import sys

import counters
import verbs_tools
from devices import meet, wait_until

RETRY_EXCEEDED = "Failed status 12"


def endless_writes(*server):
    """By way of rdma_cm, because only there the tool lets us choose how often it tries: its 7 is for ever on rxe."""
    return [*verbs_tools.write_bandwidth("rxe0", server, iterations=1000000), "-R", "--retry_count=2"]


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
    client = verbs_tools.Side(*endless_writes(os.environ["PEER_ADDRESS"]))
    status = client.ended()
    if status == 0 or RETRY_EXCEEDED not in client.said():
        raise RuntimeError(f"the peer died, and the writer ended with {status}, not for its retries:\n{client.said()}")
    print(f"the writer ended with {status}:\n{client.said().strip()}")


if __name__ == "__main__":
    try:
        if os.environ["ROLE"] == "0":
            survive()
        else:
            tool = verbs_tools.start_server(*endless_writes(), listening=verbs_tools.listens_by_rdma_cm)
            meet()
            die(tool)
    except (RuntimeError, OSError) as problem:
        sys.exit(f"survivor.py: {problem}")
