#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""In the guest: runs rows of rows.txt one after the other. Usage: run_rows.py [--rows FILE] BUILD NAME...

After each row report.json is written anew, in GoogleTest's form, so it holds all that was known when a guest dies. A
row itself counts as one test, beside those of a GoogleTest program: that it ended well, and that its bytes were seen.
"""

import os
import subprocess
import sys
import time

sys.path.insert(1, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import counters
import devices
import report
from rows import ROWS, read_rows

FOLDER = "/run/guest"
SECONDS = {"short": 200, "long": 900, "pair": 450}


def make_devices(names):
    if not devices.exists("rxe0"):
        devices.single()
    if {"rxva", "rxvb"} & set(names) and not devices.exists("rxva"):
        devices.crossed()


def run_row(row, build):
    """(what is wrong with the row itself, outcomes of its GoogleTest tests)"""
    make_devices(row.devices)
    tests = os.path.join(FOLDER, "tests", row.name + ".json")
    log = os.path.join(FOLDER, row.name + ".log")
    environment = os.environ | row.environment | {"BUILD": build} | {"GTEST_OUTPUT": "json:" + tests}
    before = counters.read(row.devices)
    with open(log, "wb") as stream:
        try:
            status = subprocess.run(row.command_in(build), env=environment, stdin=subprocess.DEVNULL, stdout=stream,
                                    stderr=subprocess.STDOUT, timeout=SECONDS[row.when], check=False).returncode
        except subprocess.TimeoutExpired:
            status = f"nothing within {SECONDS[row.when]} s"
        except OSError as error:
            status = error
    growth = counters.grown(before, counters.read(row.devices))
    with open(log, encoding="utf-8", errors="replace") as stream:
        output = stream.read()
    if "MOVES" in row.environment:
        output += f"\nmoved {row.environment['MOVES']} bytes\n"
    outcomes = report.read_outcomes(tests) if os.path.exists(tests) else None
    wrong = []
    if status != 0:
        wrong.append(f"it ended with {status}")
    if outcomes == []:
        wrong.append("it ran no test (does its filter match any?)")
    if status == 0 and row.devices:
        wrong += filter(None, [counters.objection(output, growth, row.devices, row.when != "pair")])
    if wrong or any(outcome != "passed" for _, outcome in outcomes or []):
        print("\n".join(output.splitlines()[-120:]))
    return wrong, outcomes or []


def main():
    arguments = sys.argv[1:]
    path = ROWS
    if arguments[0] == "--rows":
        path = arguments[1]
        del arguments[:2]
    build, *names = arguments
    rows = read_rows(path)
    written = report.Report(os.path.join(FOLDER, "report.json"))
    for name in names:
        begin = time.monotonic()
        wrong, outcomes = run_row(rows[name], build)
        for test, outcome in outcomes:
            written.add(name, test, outcome)
        written.add(name, "row", "failed" if wrong else "passed", "; ".join(wrong))
        bad = [test for test, outcome in outcomes if outcome != "passed"]
        print(f"{'ok    ' if not wrong and not bad else 'FAILED'} {name}: {len(outcomes)} tests, {time.monotonic() - begin:.1f} s"
              + "".join(f"; {what}" for what in wrong + [f"not passed: {', '.join(bad)}"] * bool(bad)), flush=True)
    return 1 if written.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, OSError) as problem:
        sys.exit(f"run_rows.py: {problem}")
