#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a bash command in a throw-away guest with real RDMA verbs, in software emulation. docs/guest.md explains it.

  guest.py image                      makes the guest's image when there is none yet, and prints its folder
  guest.py run  [OPTIONS] COMMAND     one guest
  guest.py pair [OPTIONS] COMMAND     two guests, joined by one wire; the command runs in both, with ROLE (0 or 1),
                                      OWN_ADDRESS and PEER_ADDRESS, and the device rxe0 on the wire

The guest sees the machine's files at their own paths; what it writes is lost, except below /run/guest. The status is
the command's (of a pair: of the first that failed), 124 after the limit of time, 125 when the guest died, 126 when there
is no QEMU, no kernel or no image. Logs: build/guest/NAME.
"""

import argparse
import os
import shlex
import sys

from image import image
from machine import NO_GUEST, TOP, Guest
from pair import run_pair
from problem import Problem


def arguments_of_caller():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="what", required=True)
    kinds.add_parser("image")
    for what in ("run", "pair"):
        kind = kinds.add_parser(what, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        kind.add_argument("--name", default=what, help="of the folder for its logs")
        kind.add_argument("--logs", default=os.path.join(TOP, "build", "guest"), help="where that folder is")
        kind.add_argument("--cpu", default="max", help="QEMU's model of the processor; max has no AVX-512")
        kind.add_argument("--cpus", type=int, default=2, help="virtual processors")
        kind.add_argument("--memory", type=int, default=2048, help="MiB")
        kind.add_argument("--limit", type=float, default=300, help="seconds that the command may take")
        kind.add_argument("--qemu", action="append", default=[], metavar="ARGUMENTS",
                          help="more arguments for QEMU, such as devices: --qemu='-device intel-iommu'; may be repeated")
        kind.add_argument("command", nargs="+", help="one word: bash text; several: a program and its arguments (after --)")
    return parser.parse_args()


def main():
    chosen = arguments_of_caller()
    if chosen.what == "image":
        print(image())
        return 0
    folder = os.path.join(chosen.logs, chosen.name)
    command = chosen.command[0] if len(chosen.command) == 1 else shlex.join(chosen.command)
    machine = {"cpu": chosen.cpu, "cpus": chosen.cpus, "memory": chosen.memory,
               "arguments": [word for text in chosen.qemu for word in shlex.split(text)]}
    show = lambda line: print(line, flush=True)
    if chosen.what == "run":
        guests = [Guest(folder, **machine)]
        statuses = [guests[0].run(command, chosen.limit, show)]
    else:
        guests, statuses = run_pair(folder, command, chosen.limit, show, **machine)
    for guest, status in zip(guests, statuses):
        counts = ", ".join(f"{count} {word}" for word, count in guest.counts().items())
        print(f"guest: status {status}; tests: {counts}; logs: {guest.folder}", file=sys.stderr)
    return next((status for status in statuses if status), 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Problem as problem:
        print(f"guest: {problem}", file=sys.stderr)
        sys.exit(NO_GUEST)
