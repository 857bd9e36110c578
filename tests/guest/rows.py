# SPDX-License-Identifier: Apache-2.0
"""Reads rows.txt, for the host and for the guest alike."""

import os
import re
import shlex
from dataclasses import dataclass

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
ROWS = os.path.join(HERE, "rows.txt")


@dataclass
class Row:
    when: str  # short, long or pair
    name: str
    devices: list  # whose counters must grow
    environment: dict
    command: list
    peer_status: int = 0  # of guest 1, of a pair

    def command_in(self, build):
        program, *arguments = self.command
        path = os.path.join(TOP, program) if "/" in program else os.path.join(build, "bin", program)
        return [path, *arguments]


def parse_row(line, place):
    words = shlex.split(line)
    if len(words) < 4:
        raise SystemExit(f"{place}: '{line}' is not WHEN NAME DEVICES [VARIABLE=VALUE ...] PROGRAM [ARGUMENT ...]")
    when, name, devices, *rest = words
    matched = re.fullmatch(r"(short|long|pair)(?::(\d+))?", when)
    if not matched or (matched.group(2) and matched.group(1) != "pair"):
        raise SystemExit(f"{place}: '{when}' is not short, long, pair or pair:STATUS")
    environment = {}
    while rest and re.match(r"[A-Za-z_]\w*=", rest[0]):
        variable, value = rest.pop(0).split("=", 1)
        environment[variable] = value
    if not rest:
        raise SystemExit(f"{place}: '{line}' names no program")
    return Row(matched.group(1), name, [] if devices == "-" else devices.split(","), environment, rest, int(matched.group(2) or 0))


def read_rows(path=ROWS):
    rows = {}
    with open(path, encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip() or line.startswith("#"):
                continue
            row = parse_row(line.strip(), f"{path}:{number}")
            if row.name in rows:
                raise SystemExit(f"{path}:{number}: there is a row '{row.name}' already")
            rows[row.name] = row
    return rows
