# SPDX-License-Identifier: Apache-2.0
"""Runs test programs side by side, the longest first, and those that need the machine for themselves one by one."""

import concurrent.futures
import json
import os

from suite.programs import run_program


class Durations:
    """The seconds that each program took last, in the user's cache folder, where they outlive a clone."""

    def __init__(self, build):
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        top = os.environ.get("PEERLANE_CHECKS") or os.path.join(cache, "peerlane-checks")
        self.path = os.path.join(top, f"seconds-{os.path.basename(os.path.abspath(build))}.json")
        try:
            with open(self.path, encoding="utf-8") as stream:
                self.seconds = json.load(stream)
        except (OSError, ValueError):
            self.seconds = {}  # only an order is lost

    def of(self, program):
        return self.seconds.get(program.name, program.limit)  # one that is not known may be long

    def keep(self, runs):
        self.seconds.update({run.program.name: round(run.seconds, 1) for run in runs})
        part = f"{self.path}.{os.getpid()}"  # clones share the folder
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with open(part, "w", encoding="utf-8") as stream:
                json.dump(self.seconds, stream)
            os.replace(part, self.path)
        except OSError:
            pass  # only an order is lost


def run_all(programs, jobs, durations, results, say):
    """A run of each program; results: the folder below which each has one."""
    def one(program):
        run = run_program(program, os.path.join(results, program.name), say=say)
        if not run.is_well:
            say(f"not well after {run.seconds:.1f} s: {program.name}")
        return run

    ordered = sorted(programs, key=durations.of, reverse=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        runs = list(pool.map(one, [program for program in ordered if not program.serial]))
    runs += [one(program) for program in ordered if program.serial]
    durations.keep(runs)
    return runs


def beside(run, runs):
    """The programs that ran while this one did."""
    return [other.program for other in runs
            if other.program != run.program and other.began < run.ended and run.began < other.ended]
