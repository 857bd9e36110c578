#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A device is removed while a program has it open: at once, and the program hears of it. Makes a device for that."""

import subprocess
import sys

import devices
from verbs_tools import Side


def main():
    devices.single("rxgone", "dumgone", "10.2.0.1")
    watcher = Side("stdbuf", "-oL", "ibv_asyncwatch", "-d", "rxgone")
    devices.wait_until("ibv_asyncwatch has opened the device", lambda: "async event FD" in watcher.said())
    # A kernel that waits for the program would wait for ever.
    subprocess.run(["rdma", "link", "delete", "rxgone"], check=True, timeout=30)
    if not watcher.running():
        raise RuntimeError(f"ibv_asyncwatch ended by itself, so nothing had the device open:\n{watcher.said()}")
    devices.wait_until("the event comes", lambda: "IBV_EVENT_DEVICE_FATAL" in watcher.said())
    if devices.exists("rxgone"):
        raise RuntimeError("the device is still there")
    watcher.kill()
    print("the device is gone, and the program that has it open heard of it")


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, OSError, subprocess.SubprocessError) as problem:
        sys.exit(f"removal.py: {problem}")
