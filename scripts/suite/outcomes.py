# SPDX-License-Identifier: Apache-2.0
"""What a run of a test program says of each of its tests."""

import json
import os
import re
from dataclasses import dataclass

BEGAN = re.compile(r"^\[ RUN      \] (\S+)", re.MULTILINE)
ENDED = re.compile(r"^\[ +(?:OK|FAILED|SKIPPED) +\] (\S+?)(?:,| \(|$)", re.MULTILINE)
FAILED = re.compile(r"^\[  FAILED  \] (\S+?)(?:,| \(|$)", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    program: str
    case: str | None  # None: the program as a whole
    result: str  # passed | failed | skipped | hung | broken: the program did not say how the test ended
    text: str = ""  # what was said about a test that did not pass
    seconds: float = 0.0

    @property
    def name(self):
        return f"{self.program}: {self.case}" if self.case else self.program


def googletest_tests(path):
    """[(name, "passed" | "failed" | "skipped", text, seconds)] of a report; disabled tests count as skipped."""
    with open(path, encoding="utf-8") as stream:
        report = json.load(stream)
    found = []
    for suite in report["testsuites"]:
        for test in suite["testsuite"]:
            name = f"{suite['name']}.{test['name']}"
            text = "\n".join(one["failure"] for one in test.get("failures", []))
            seconds = float(test.get("time", "0s").rstrip("s") or 0)
            if test.get("failures"):
                found.append((name, "failed", text, seconds))
            elif test["status"] == "RUN" and test["result"] == "COMPLETED":
                found.append((name, "passed", "", seconds))
            else:
                found.append((name, "skipped", "", seconds))
    return found


def output_of(case, output):
    """What the program and its children printed while this case ran."""
    begin = re.search(rf"^\[ RUN      \] {re.escape(case)}$", output, re.MULTILINE)
    if not begin:
        return ""
    end = ENDED.search(output, begin.end())
    return output[begin.end():end.start() if end else len(output)].strip()


def last_begun(output):
    """The case that had begun and not ended, or None."""
    ended = set(ENDED.findall(output))
    return next((case for case in reversed(BEGAN.findall(output)) if case not in ended), None)


def outcomes_of(run):
    """The outcome of each case of a run, or of the program where it has none or did not end well."""
    program = run.program.name
    whole = "the program was ended after its limit of time" if run.timed_out else \
        f"the program was killed by signal {-run.status}" if run.status < 0 else f"the program ended with {run.status}"
    if not run.program.has_cases:
        result = "passed" if run.is_well else "hung" if run.timed_out else "failed"
        return [Outcome(program, run.case, result, "" if run.is_well else f"{whole}\n{run.output[-20000:]}", run.seconds)]
    if os.path.exists(run.report):
        found = [Outcome(program, name, result, "" if result == "passed" else f"{text}\n{output_of(name, run.output)}", seconds)
                 for name, result, text, seconds in googletest_tests(run.report)]
        if not found:
            return [Outcome(program, run.case, "broken", "it holds no such test")]
        if not run.is_well and all(one.result != "failed" for one in found):
            found.append(Outcome(program, None, "hung" if run.timed_out else "broken",
                                 f"all tests passed, but {whole}\n{run.output[-4000:]}"))
        return found
    # The program did not come to its report. What it said of the cases before counts; the others are known after a run of
    # the whole program (again.py), where this one is no fault.
    case = last_begun(run.output) or run.case
    found = [Outcome(program, name, "failed", output_of(name, run.output)) for name in dict.fromkeys(FAILED.findall(run.output))]
    text = f"{whole}\n{output_of(case, run.output) if case else run.output[-20000:]}"
    return [*found, Outcome(program, case, "hung" if run.timed_out else "broken", text, run.seconds)]
