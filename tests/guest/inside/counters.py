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


def objection(output, growth, devices, both_ends_here=True):
    """Why the counters do not prove what the program says that it moved; None when they do. A device that only talked
    has proven nothing. Of two guests, either sends what the other receives."""
    moved = sum(int(match) for match in MOVED.findall(output))
    if moved == 0:
        return "it never says that it moved any bytes ('moved N bytes' on a line of its own)"
    for unit, least in (("pkts", -(-moved // PACKET_BYTES)), ("bytes", moved)):
        sent, received = growth["sent_" + unit], growth["rcvd_" + unit]
        if (min(sent, received) if both_ends_here else sent + received) < least or not sent or not received:
            return (f"it says that it moved {moved} bytes, so {least} {unit} at least; of {', '.join(devices)}, "
                    f"sent_{unit} grew by {sent} and rcvd_{unit} by {received}")
    return None
