# SPDX-License-Identifier: Apache-2.0
"""Reports in GoogleTest's JSON form, which scripts/run_suite.py counts."""

import json
import os
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts"))
from suite.outcomes import googletest_tests


def read_outcomes(path):
    """[(test, "passed" | "failed" | "skipped")]"""
    return [(name, outcome) for name, outcome, _, _ in googletest_tests(path)]


class Report:
    """Outcomes by row; the file is whole after every call."""

    def __init__(self, path):
        self.path = path
        self.suites = {}
        self.failed = 0

    def add(self, row, test, outcome, why=""):
        entry = {"name": test, "status": "RUN", "result": "SKIPPED" if outcome == "skipped" else "COMPLETED"}
        if outcome == "failed":
            entry["failures"] = [{"failure": why}]
        self.failed += outcome != "passed"
        self.suites.setdefault(row, []).append(entry)
        with open(self.path + ".part", "w", encoding="utf-8") as stream:
            json.dump({"testsuites": [{"name": name, "testsuite": tests} for name, tests in self.suites.items()]}, stream)
        os.replace(self.path + ".part", self.path)

    def take(self, path, suffix=""):
        """Adds all of another report; how many tests that were."""
        with open(path, encoding="utf-8") as stream:
            suites = json.load(stream)["testsuites"]
        for suite in suites:
            for test in suite["testsuite"]:
                outcome = "failed" if test.get("failures") else "skipped" if test["result"] == "SKIPPED" else "passed"
                self.add(suite["name"] + suffix, test["name"], outcome, (test.get("failures") or [{"failure": ""}])[0]["failure"])
        return sum(len(suite["testsuite"]) for suite in suites)

    def counts(self):
        tests = [test for suite in self.suites.values() for test in suite]
        failed = sum("failures" in test for test in tests)
        skipped = sum(test["result"] == "SKIPPED" for test in tests)
        return len(tests) - failed - skipped, failed, skipped
