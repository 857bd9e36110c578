#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the tests of one ctest run. Usage: test_summary.py JUNIT RESULTS_FOLDER ALLOWED_SKIPS

JUNIT is ctest's --output-junit file; RESULTS_FOLDER has a GoogleTest JSON report per binary, which replaces
the single ctest entry of that binary. A test that skips itself fails unless ALLOWED_SKIPS names it, or it is a
Network test and a person has set NETNS=skip. Prints what sanitizers reported (logs are cut in the middle, so it stands
near the end, too) and what failed, then "PASSED FAILED ALLOWED_SKIPS" as the last line; ends with 1 unless all is well.
"""

import json
import os
import re
import sys
import xml.etree.ElementTree as ElementTree

NETWORK_TEST = re.compile(r"Network\w*\.\w+")
# Of the thread sanitizer, the others, and the undefined behaviour sanitizer.
REPORT_BEGIN = re.compile(r"WARNING: ThreadSanitizer: |==\d+==ERROR: |.*: runtime error: ")
REPORT_LINES = 120
REPORTS = 3
ALLOWED_LINE = re.compile(r"(Gpu\w*\.[\w/]+): \S.*")


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


def googletest_outcomes(path):
    """[(name, "passed" | "failed" | "skipped")] of one report; disabled tests count as skipped."""
    with open(path, encoding="utf-8") as stream:
        report = json.load(stream)
    outcomes = []
    for suite in report["testsuites"]:
        for test in suite["testsuite"]:
            name = f"{suite['name']}.{test['name']}"
            if test.get("failures"):
                outcomes.append((name, "failed"))
            elif test["status"] == "RUN" and test["result"] == "COMPLETED":
                outcomes.append((name, "passed"))
            else:
                outcomes.append((name, "skipped"))
    return outcomes


def ctest_outcomes(cases, results):
    for case in cases:
        name, status = case.get("name"), case.get("status")
        report = os.path.join(results, name + ".json")
        if os.path.exists(report):
            outcomes = googletest_outcomes(report)
            yield from ((f"{name}: {test}", test, outcome) for test, outcome in outcomes)
            if not outcomes:
                yield name + " (holds no test)", name, "failed"
            elif status != "run" and all(outcome != "failed" for _, outcome in outcomes):
                yield name + " (all tests passed, but the program did not end well)", name, "failed"
        elif status == "run":
            yield name, name, "passed"
        elif status == "fail":
            yield name + " (crashed, timed out or failed; see above)", name, "failed"
        else:
            yield f"{name} ({status})", name, "skipped"


def sanitizer_reports(cases):
    """[(ctest name, text)] of the first reports in each program that failed."""
    reports = []
    for case in cases:
        if case.get("status") != "fail":
            continue
        lines = (case.findtext("system-out") or "").splitlines()
        begins = [number for number, line in enumerate(lines) if REPORT_BEGIN.match(line)][:REPORTS]
        for begin in begins:
            text = lines[begin:begin + REPORT_LINES]
            end = next((number for number, line in enumerate(text) if line.startswith("SUMMARY: ")), len(text))
            reports.append((case.get("name"), "\n".join(text[:end + 1])))
    return reports


def main():
    junit, results, allowed_path = sys.argv[1:]
    allowed = read_allowed(allowed_path)
    cases = list(ElementTree.parse(junit).getroot().iter("testcase"))
    without_network = os.environ.get("NETNS") == "skip"
    passed = failed = skipped = 0
    for name, text in sanitizer_reports(cases):
        print(f"-- reported in {name}:\n{text}")
    for label, test, outcome in ctest_outcomes(cases, results):
        if outcome == "passed":
            passed += 1
        elif outcome == "skipped" and (test in allowed or without_network and NETWORK_TEST.fullmatch(test)):
            skipped += 1
        else:
            failed += 1
            why = "FAILED" if outcome == "failed" else "SKIPPED ITSELF, which .ci/allowed_skips does not allow"
            print(f"{why}: {label}")
    if passed + failed + skipped == 0:
        print("FAILED: no test ran")
        failed = 1
    print(passed, failed, skipped)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
