#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs rows of rows.txt in guests. Usage: rdma_tests.py BUILD short|long [--report FILE] [NAME...] (default: all rows).

The last line is "N passed, N failed"; a test that skips itself in a guest is a failure. --report writes all outcomes in
GoogleTest's form. Logs: BUILD/guest/short, BUILD/guest/long, BUILD/guest/NAME for two guests.
"""

import argparse
import os
import shlex
import sys

from machine import DIED, HERE, NO_GUEST, TIMED_OUT, Guest
from pair import run_pair
from problem import Problem
from report import Report
from rows import read_rows

SECONDS = {"short": 600, "long": 1200, "pair": 500}
MEANING = {TIMED_OUT: "the time was over", DIED: "the guest died: its kernel, not the program (console.log)"}


def show(line):
    print(line, flush=True)


def inside(build, names):
    program = os.path.join(HERE, "inside", "run_rows.py")
    return shlex.join(["python3", program, build, *names])


def judge(report, guest, names, status, expected=0, suffix=""):
    """Adds what a guest reported, and how it ended where no row's failure explains that."""
    path = os.path.join(guest.folder, "report.json")
    failed_before = report.failed
    if os.path.exists(path):
        report.take(path, suffix)
    if status != expected and not (status == 1 and report.failed > failed_before):
        why = f"{MEANING.get(status, f'it ended with {status}')}, and {expected} was due"
    elif status == 0 and any(name + suffix not in report.suites for name in names):
        why = f"it ended well without rows: {', '.join(name for name in names if name + suffix not in report.suites)}"
    else:
        why = ""
    name = os.path.relpath(guest.folder, os.path.join(guest.folder, "..", ".."))
    if why:
        show(f"FAILED {name}: {why}; logs: {guest.folder}")
    if why or expected:
        report.add(name, "guest", "failed" if why else "passed", why)


def run_single(report, build, when, names):
    guest = Guest(os.path.join(build, "guest", when))
    judge(report, guest, names, guest.run(inside(build, names), SECONDS[when], show))


def run_two(report, build, row):
    guests, statuses = run_pair(os.path.join(build, "guest", row.name), inside(build, [row.name]), SECONDS["pair"], show)
    for role, (guest, status) in enumerate(zip(guests, statuses)):
        judge(report, guest, [row.name], status, row.peer_status if role else 0, f"[{role}]")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("length", choices=["short", "long"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--report")
    chosen = parser.parse_args()
    build = os.path.abspath(chosen.build)
    kinds = ["short"] if chosen.length == "short" else ["long", "pair"]
    rows = [row for row in read_rows().values() if row.when in kinds]
    unknown = set(chosen.names) - {row.name for row in rows}
    if unknown:
        parser.error(f"rows.txt has no {chosen.length} row {', '.join(sorted(unknown))}; it has {', '.join(row.name for row in rows)}")
    rows = [row for row in rows if row.name in chosen.names or not chosen.names]
    report = Report(chosen.report or os.path.join(build, "guest", f"{chosen.length}.json"))
    os.makedirs(os.path.dirname(report.path), exist_ok=True)
    single = [row.name for row in rows if row.when == chosen.length]
    if single:
        run_single(report, build, chosen.length, single)
    for row in rows:
        if row.when == "pair":
            run_two(report, build, row)
    passed, failed, skipped = report.counts()
    show(f"{passed} passed, {failed + skipped} failed")
    return 0 if passed and not report.failed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Problem as problem:
        print(f"rdma_tests.py: {problem}\n0 passed, 1 failed", flush=True)
        sys.exit(NO_GUEST)
