#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of a build folder, and tells faults from noise.

Usage: run_suite.py BUILD_FOLDER [--ledger FILE] [--jobs N] [-- CTEST ARGUMENTS THAT CHOOSE]
       run_suite.py --report LEDGER

A fault is wrong bytes, a crash, a leak, a fuzzer's finding, or a sanitizer's report of any process (scripts/suite/faults.py):
it fails the run. Any other failed test is run again after all others have ended: three times alone, then twenty times beside the
programs that ran beside it. If it fails once more, it failed. Else it is unsteady: with CI=true up to three unsteady
tests of a whole run pass; without, each fails unless .ci/unsteady.txt has a line for it. A test that skips itself fails unless
.ci/allowed_skips names it, or it is a Network test and a person has set NETNS=skip.

Prints what failed and how, then "PASSED FAILED SKIPPED"; ends with 1 unless all is well. Where SIGTERM ends it, it says what
was running, with the stacks of all threads.
"""

import argparse
import datetime
import glob
import os
import re
import shutil
import signal
import sys
import threading
import time

from suite.again import Again
from suite.faults import fault_of, reports_of
from suite.outcomes import outcomes_of
from suite.programs import LIVE, STARTING, STOPPING, end_all, programs_of, sanitizer_reports
from suite.schedule import Durations, beside, run_all
from suite.stacks import stacks_of
from suite.unsteady import DAYS, MOST_IN_LANDING_CHECK, Ledger, read_excuses

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NETWORK_TEST = re.compile(r"Network\w*\.\w+")
ALLOWED_LINE = re.compile(r"(Gpu\w*\.[\w/]+): \S.*")
MOST_LINES = 120  # of what one failure said
FIRST_LINES = 20  # of an unsteady test's output, in the summary
LAST_LOOK_SECONDS = 30  # bounds the stacks of what runs when the whole check is at its limit, which kills after 60


def read_allowed(path):
    allowed = set()
    with open(path, encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            match = ALLOWED_LINE.fullmatch(line)
            if not match:
                raise SystemExit(f"{path}:{number}: '{line}' is not 'GpuSuite.Test: reason'")
            allowed.add(match.group(1))
    return allowed


class Suite:
    """The runs of one build folder, and the verdict on each test."""

    def __init__(self, chosen, say):
        self.build = chosen.build
        self.results = os.path.join(os.path.abspath(chosen.build), "test-results")
        self.jobs = chosen.jobs
        self.say = say
        self.allowed = read_allowed(chosen.allowed_skips)
        self.excuses, self.expired = read_excuses(chosen.unsteady, datetime.date.today())
        self.is_landing_check = os.environ.get("CI") == "true"
        self.ledger = Ledger(chosen.ledger)
        self.passed = self.failed = self.skipped = 0
        self.doubtful = []  # (run, outcome) of failed tests that may be noise

    def run(self, programs):
        for folder in glob.glob(os.path.join(self.results, "again-*")):
            shutil.rmtree(folder, ignore_errors=True)
        runs = run_all(programs, self.jobs, Durations(self.build), self.results, self.say)
        for run in runs:
            self.count(run)
        self.judge(runs)
        self.look_for_late_reports(runs)
        if not self.passed + self.failed + self.skipped:
            self.fail("no test", "no test ran", "")
        self.ledger.keep()

    def fail(self, name, why, text):
        self.failed += 1
        lines = text.strip().splitlines()
        if len(lines) > MOST_LINES:
            lines = [*lines[:MOST_LINES // 2], f"... {len(lines) - MOST_LINES} lines ...", *lines[-MOST_LINES // 2:]]
        self.say("\n".join([f"FAILED {name}: {why}", *(f"    {line}" for line in lines)]))

    def count(self, run):
        """Counts the tests of a run, and puts those aside that may be noise."""
        reports = reports_of(run)
        for why, text in reports:
            self.fail(run.program.name, why, text)
        for outcome in outcomes_of(run):
            self.ledger.slowest.append([outcome.seconds, outcome.name, os.path.basename(self.build)])
            if outcome.result == "passed":
                self.passed += 1
            elif outcome.result == "skipped" and self.may_skip(outcome):
                self.skipped += 1
            elif reports:
                self.fail(outcome.name, "beside that report", outcome.text)
            elif why := fault_of(outcome, run):
                self.fail(outcome.name, why, outcome.text)
            else:
                self.doubtful.append((run, outcome))

    def may_skip(self, outcome):
        test = outcome.case or outcome.program
        return test in self.allowed or (os.environ.get("NETNS") == "skip" and NETWORK_TEST.fullmatch(test))

    def judge(self, runs):
        """Runs doubtful tests again."""
        too_many = len(self.ledger.unsteady) + len(self.doubtful) - MOST_IN_LANDING_CHECK
        for number, (run, outcome) in enumerate(self.doubtful, 1):
            if self.is_landing_check and too_many > 0:
                # The run fails even if all of them are noise, and twenty runs of each take long.
                self.fail(outcome.name, f"{outcome.result}; not run again, because with it {too_many} tests too many failed",
                          outcome.text)
                continue
            self.say(f"again: {outcome.name} ({outcome.result})")
            again = Again(run, outcome.case, beside(run, runs), self.jobs, self.results, f"again-{number}", self.say)
            why, text = again.failure(broke_off=outcome.result in ("hung", "broken"))
            self.passed += sum(one.result == "passed" for one in again.others)
            self.skipped += sum(one.result == "skipped" for one in again.others)
            if why:
                self.fail(outcome.name, f"{outcome.result}, and again: {why}", f"{outcome.text}\n-- and again\n{text}")
            else:
                self.keep_unsteady(outcome)

    def keep_unsteady(self, outcome):
        first = "\n".join(outcome.text.strip().splitlines()[:FIRST_LINES])
        self.ledger.unsteady.append({"suite": os.path.basename(self.build), "name": outcome.name, "output": first})
        self.ledger.keep()
        if self.is_landing_check or outcome.name in self.excuses:
            self.passed += 1
            self.say(f"UNSTEADY {outcome.name}")
        else:
            self.fail(outcome.name, f"unsteady: mend it, or give it a line in .ci/unsteady.txt, which holds for {DAYS} days",
                      outcome.text)

    def look_for_late_reports(self, runs):
        """Those of processes that outlived their program."""
        known = {run.program.name: run.sanitizer_reports for run in runs}
        for folder in [*known, *map(os.path.basename, glob.glob(os.path.join(self.results, "again-*")))]:
            for file, text in sanitizer_reports(os.path.join(self.results, folder)).items():
                if file not in known.get(folder, {}):
                    self.fail(folder, f"a sanitizer's report, {file}", text)


def arguments_of_caller():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?")
    parser.add_argument("--report", metavar="LEDGER", help="print what all suites of a run found, and end")
    parser.add_argument("--ledger", default=os.path.join(ROOT, "build", "ci_tests.json"))
    parser.add_argument("--jobs", type=int, default=2 * len(os.sched_getaffinity(0)))
    parser.add_argument("--unsteady", default=os.path.join(ROOT, ".ci", "unsteady.txt"))
    parser.add_argument("--allowed-skips", default=os.path.join(ROOT, ".ci", "allowed_skips"))
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    chosen = parser.parse_args(words[:at])
    if not chosen.build and not chosen.report:
        parser.error("a build folder, or --report")
    chosen.choice = words[at + 1:]
    return chosen


def main():
    chosen = arguments_of_caller()
    if chosen.report:
        print("\n".join(Ledger(chosen.report).report()))
        return 0
    lock = threading.Lock()

    def say(text):
        with lock:
            print(text, flush=True)

    def stop(number, _):
        STOPPING.set()
        # One that is being started is not among them yet. Limited, for this thread may be the one that starts it.
        has_all = STARTING.acquire(timeout=2)
        live = list(LIVE)
        if has_all:
            STARTING.release()
        # Not by say(): this thread may hold its lock, and what reads the output may have been ended, too.
        names = ", ".join(name for name, _ in live) or "nothing"
        os.write(2, f"run_suite.py: ended by {signal.Signals(number).name} while it ran {names}\n".encode())
        deadline = time.monotonic() + LAST_LOOK_SECONDS
        for name, process in live if number == signal.SIGTERM else []:
            os.write(2, f"-- {name}\n{stacks_of(process.pid, deadline - time.monotonic())}\n".encode())
        for _, process in live:
            end_all(process)
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    suite = Suite(chosen, say)
    suite.run(programs_of(chosen.build, chosen.choice))
    for line in suite.expired:
        say(f".ci/unsteady.txt: this line no longer excuses its test: {line}")
    print(suite.passed, suite.failed, suite.skipped)
    return 1 if suite.failed else 0


if __name__ == "__main__":
    sys.exit(main())
