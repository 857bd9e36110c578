# SPDX-License-Identifier: Apache-2.0
"""Runs a failed test again: alone, then beside the programs that ran beside it. One more failure, and it failed; none,
and it is unsteady."""

import itertools
import os
import threading

from suite.faults import fault_of
from suite.outcomes import outcomes_of
from suite.programs import run_program

ALONE = 3
BESIDE = 20


class Again:
    def __init__(self, program, case, company, jobs, results, say):
        self.program = program
        self.case = case
        self.company = company
        self.jobs = jobs
        self.results = results
        self.say = say
        self.passed_of_others = 0

    def failure(self, leaves_out_others):
        """(why it failed again, what it said), or ("", "") where it did not. A case that hung or ended its program left out
        those after it: these run, too, and passed_of_others says how many passed."""
        for number in range(ALONE):
            why = failure_of(self.run(self.case))
            if why[0]:
                return f"{why[0]}, alone, in run {number + 1} of {ALONE}", why[1]
        with Company(self.company, self.jobs - 1, self.results, self.say) as company:
            for number in range(BESIDE):
                why = failure_of(self.run(self.case))
                if why[0]:
                    return f"{why[0]}, beside others, in run {number + 1} of {BESIDE}", why[1]
        if company.faults:
            return company.faults[0]
        if leaves_out_others and self.case:
            whole = self.run(None)
            self.passed_of_others = sum(one.result == "passed" for one in outcomes_of(whole)) - 1
            why = failure_of(whole)
            if why[0]:
                return f"{why[0]}, in a run of the whole program", why[1]
        return "", ""

    def run(self, case):
        return run_program(self.program, os.path.join(self.results, "again"), case, self.say)


def failure_of(run):
    """(why a run was not well, what it said), or ("", "")."""
    for text in run.sanitizer_reports.values():
        return "a sanitizer's report", text
    for outcome in outcomes_of(run):
        if outcome.result != "passed" and (outcome.result != "skipped" or run.case):
            return fault_of(outcome, run.program, run.status) or outcome.result, f"{outcome.name}\n{outcome.text}"
    return "", ""


class Company:
    """Programs that run over and over while something else does. Their failures are nobody's subject, but faults are."""

    def __init__(self, programs, slots, results, say):
        self.over = threading.Event()
        self.turns = itertools.cycle(programs)
        self.lock = threading.Lock()
        self.faults = []
        self.results = results
        self.say = say
        self.threads = [threading.Thread(target=self.keep_running, args=[slot])
                        for slot in range(min(slots, len(programs)))]

    def keep_running(self, slot):
        while not self.over.is_set():
            with self.lock:
                program = next(self.turns)
            run = run_program(program, os.path.join(self.results, f"beside{slot}"), say=self.say)
            for text in run.sanitizer_reports.values():
                self.faults.append((f"a sanitizer's report of {program.name}, which ran beside it", text))
            for outcome in outcomes_of(run):
                if outcome.result != "passed" and fault_of(outcome, program, run.status) == "a crash":
                    self.faults.append((f"a crash of {outcome.name}, which ran beside it", outcome.text))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()
