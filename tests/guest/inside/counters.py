# SPDX-License-Identifier: Apache-2.0
"""Counters of RDMA devices, and the rule that bytes which are said to have moved were seen by a device."""

import os
import re

from devices import SYSFS

# A packet carries at most the largest path MTU.
PACKET_BYTES = 4096
MOVED = re.compile(r"^moved (\d+) bytes$", re.MULTILINE)


def read(devices):
    """{counter: sum over the devices}"""
    sums = {}
    for device in devices:
        folder = os.path.join(SYSFS, device, "ports", "1", "hw_counters")
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), encoding="utf-8") as stream:
                text = stream.read().strip()
            if text.isdigit():
                sums[name] = sums.get(name, 0) + int(text)
    return sums


def grown(before, after):
    return {name: count - before.get(name, 0) for name, count in after.items()}


def objection(output, growth, devices):
    """Why the counters do not prove what the program says that it moved; None when they do. Both directions count, because
    a device that received nothing has only talked."""
    moved = sum(int(match) for match in MOVED.findall(output))
    if moved == 0:
        return "it never says that it moved any bytes ('moved N bytes' on a line of its own)"
    least = -(-moved // PACKET_BYTES)
    for name in ("sent_pkts", "rcvd_pkts"):
        if growth.get(name, 0) < least:
            return f"it says that it moved {moved} bytes, at least {least} packets; {name} of {', '.join(devices)} grew by {growth.get(name, 0)}"
    return None
