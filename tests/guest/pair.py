# SPDX-License-Identifier: Apache-2.0
"""Two guests and one wire between them: a pair of Unix datagram sockets that carries Ethernet frames."""

import os
import shlex
import shutil
import tempfile
import threading

from machine import HERE, NO_GUEST, Guest
from problem import Problem

ADDRESSES = ("10.9.0.1", "10.9.0.2")


def wire(folder, role):
    own, peer = (os.path.join(folder, str(end)) for end in (role, 1 - role))
    return ["-netdev", f"dgram,id=wire,local.type=unix,local.path={own},remote.type=unix,remote.path={peer}",
            "-device", f"virtio-net-pci,netdev=wire,mac=52:54:00:00:00:0{role + 1},host_mtu=9000,romfile="]


def run_pair(folder, command, limit, show, arguments=(), **machine):
    """Runs the command in both; returns the guests and their statuses. A line that is shown begins with its role."""
    sockets = tempfile.mkdtemp(prefix="wire.")  # a path that is short enough for a socket
    guests = [Guest(os.path.join(folder, str(role)), arguments=[*arguments, *wire(sockets, role)], **machine) for role in (0, 1)]
    statuses = [NO_GUEST, NO_GUEST]
    problems = []

    def run(role):
        setting = {"ROLE": role, "OWN_ADDRESS": ADDRESSES[role], "PEER_ADDRESS": ADDRESSES[1 - role]}
        words = " ".join(f"{name}={value}" for name, value in setting.items())
        devices = shlex.quote(os.path.join(HERE, "inside", "devices.py"))
        text = f"export {words}\npython3 {devices} wire || exit\n{command}"
        try:
            statuses[role] = guests[role].run(text, limit, lambda line: show(f"[{role}] {line}"))
        except Problem as problem:
            problems.append(problem)

    try:
        threads = [threading.Thread(target=run, args=(role,)) for role in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        shutil.rmtree(sockets)
    if problems:
        raise problems[0]
    return guests, statuses
