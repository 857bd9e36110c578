# SPDX-License-Identifier: Apache-2.0
"""Runs a failed test again: alone, then beside the programs that ran beside it. One more failure, and it failed; none,
and it is unsteady."""

import itertools
import os
import threading
import time

from suite.faults import fault_of, reports_of
from suite.outcomes import outcomes_of
from suite.programs import LIVE, end_all, run_program

ALONE = 3
BESIDE = 20
MOST_SECONDS = 600  # bounds the runs beside others: no more begin after it, because the whole check has a limit, too
LEAST_BESIDE = 3  # runs beside others, whatever they take


class Again:
    """The runs of one test that failed; each has a folder of its own below `results`, which starts with `label`."""

    def __init__(self, failed_run, case, company, jobs, results, label, say):
        self.program = failed_run.program
        self.case = case
        self.company = company
        self.jobs = jobs
        self.folders = (os.path.join(results, f"{label}-{number}") for number in itertools.count(1))
        self.say = say
        self.others = []  # the outcomes of the cases that a run which broke off left out

    def failure(self, broke_off):
        """(why it failed again, what it said), or ("", "") where it did not. `broke_off`: the case hung, or ended its program, so
        the cases after it have not run: they run, too."""
        for number in range(ALONE):
            why, text = self.look(self.case)
            if why:
                return f"{why}, alone, in run {number + 1} of {ALONE}", text
        begin = time.monotonic()
        with Company(self.company, self.jobs - 1, self.folders, self.say) as company:
            for number in range(BESIDE):
                if number >= LEAST_BESIDE and time.monotonic() - begin > MOST_SECONDS:
                    self.say(f"{self.program.name}: {MOST_SECONDS} s are over after {number} of {BESIDE} runs beside others")
                    break
                why, text = self.look(self.case)
                if why:
                    return f"{why}, beside others, in run {number + 1} of {BESIDE}", text
        if company.faults:
            return company.faults[0]
        if broke_off and self.case:
            run = self.run(None)
            self.others = [one for one in outcomes_of(run) if one.case != self.case]
            if found := reports_of(run):
                return found[0]
            wrong = next((one for one in outcomes_of(run) if one.result not in ("passed", "skipped")), None)
            if wrong:
                return f"{fault_of(wrong, run) or wrong.result}, in a run of the whole program", f"{wrong.name}\n{wrong.text}"
        return "", ""

    def run(self, case):
        return run_program(self.program, next(self.folders), case, self.say)

    def look(self, case):
        return failure_of(self.run(case))


def failure_of(run):
    """(why a run was not well, what it said), or ("", "")."""
    for why, text in reports_of(run):
        return why, text
    for outcome in outcomes_of(run):
        if outcome.result != "passed":
            return fault_of(outcome, run) or outcome.result, f"{outcome.name}\n{outcome.text}"
    return "", ""


class Company:
    """Programs that run over and over while something else does. Only their faults count. At the end they are ended."""

    def __init__(self, programs, slots, folders, say):
        self.over = threading.Event()
        self.turns = itertools.cycle(programs)
        self.folders = folders
        self.lock = threading.Lock()
        self.mine = set()  # names of the programs; the subject itself is none of them
        self.faults = []
        self.say = say
        self.threads = [threading.Thread(target=self.keep_running) for _ in range(min(slots, len(programs)))]

    def keep_running(self):
        try:
            while not self.over.is_set():
                with self.lock:
                    program, folder = next(self.turns), next(self.folders)
                    self.mine.add(program.name)
                run = run_program(program, folder, say=self.say)
                if not self.over.is_set():
                    self.look(run)
        except (OSError, ValueError) as problem:
            self.faults.append((f"a program that could not run beside it: {problem}", ""))

    def look(self, run):
        self.faults += [(f"{why} of {run.program.name}, which ran beside it", text) for why, text in reports_of(run)]
        for outcome in outcomes_of(run):
            why = fault_of(outcome, run) if outcome.result not in ("passed", "skipped") else ""
            if why:
                self.faults.append((f"{why} of {outcome.name}, which ran beside it", outcome.text))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for name, process in list(LIVE):
            if name in self.mine:
                end_all(process)
        for thread in self.threads:
            thread.join()
