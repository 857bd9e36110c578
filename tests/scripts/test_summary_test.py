#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/test_summary.py: every way a run can go wrong is counted as a failure, and nothing else is."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "scripts", "test_summary.py")

PASSED = {"name": "Good", "status": "RUN", "result": "COMPLETED"}
FAILED = {"name": "Bad", "status": "RUN", "result": "COMPLETED", "failures": [{"failure": "x"}]}
SKIPPED = {"name": "Away", "status": "RUN", "result": "SKIPPED"}
DISABLED = {"name": "DISABLED_Off", "status": "NOTRUN", "result": "SUPPRESSED"}


def summarise(cases, reports=None, allowed="", netns="", output=""):
    """cases: {ctest name: status}; reports: {ctest name: {suite: [test, ...]}}; output: what each printed.
    Returns (status, lines)."""
    with tempfile.TemporaryDirectory() as folder:
        junit = os.path.join(folder, "junit.xml")
        with open(junit, "w", encoding="utf-8") as stream:
            inner = "".join(f'<testcase name="{name}" status="{status}"><system-out>{output}</system-out></testcase>'
                            for name, status in cases.items())
            stream.write(f"<testsuite>{inner}</testsuite>")
        for name, suites in (reports or {}).items():
            with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as stream:
                json.dump({"testsuites": [{"name": s, "testsuite": t} for s, t in suites.items()]}, stream)
        skips = os.path.join(folder, "allowed")
        with open(skips, "w", encoding="utf-8") as stream:
            stream.write(allowed)
        answer = subprocess.run([sys.executable, SCRIPT, junit, folder, skips],
                                capture_output=True, text=True, check=False, env=os.environ | {"NETNS": netns})
        return answer.returncode, (answer.stdout + answer.stderr).splitlines()


class TestSummary(unittest.TestCase):
    def expect(self, last, status, *arguments, **more):
        code, lines = summarise(*arguments, **more)
        self.assertEqual((lines[-1], code), (last, status), lines)
        return lines

    def test_counts_what_is_inside_a_binary(self):
        self.expect("3 0 0", 0, {"a": "run", "script": "run"}, {"a": {"S": [PASSED, PASSED]}})

    def test_failure_inside_a_binary(self):
        lines = self.expect("1 1 0", 1, {"a": "fail"}, {"a": {"S": [PASSED, FAILED]}})
        self.assertEqual(lines[0], "FAILED: a: S.Bad")

    def test_a_person_may_leave_network_tests_out(self):
        away = ({"a": "run"}, {"a": {"NetworkTest": [SKIPPED, PASSED]}})
        self.expect("1 1 0", 1, *away)
        self.expect("1 0 1", 0, *away, netns="skip")
        self.expect("0 1 0", 1, {"a": "run"}, {"a": {"Other": [SKIPPED]}}, netns="skip")

    def test_crash_leaves_no_report(self):
        self.expect("0 1 0", 1, {"a": "fail"})

    def test_failure_after_the_last_test(self):
        self.expect("1 1 0", 1, {"a": "fail"}, {"a": {"S": [PASSED]}})

    def test_what_a_sanitizer_reported_stands_beside_the_failure(self):
        output = "before\n==7==ERROR: AddressSanitizer: heap-use-after-free\n#0 f\nSUMMARY: x\nafter"
        _, lines = summarise({"a": "fail"}, {"a": {"S": [PASSED]}}, output=output)
        self.assertEqual(lines[:4], ["-- reported in a:", "==7==ERROR: AddressSanitizer: heap-use-after-free", "#0 f",
                                     "SUMMARY: x"])
        self.assertTrue(lines[4].startswith("FAILED: a"), lines)
        self.assertEqual(self.expect("1 0 0", 0, {"a": "run"}, output=output), ["1 0 0"])

    def test_reports_of_every_sanitizer_are_found_and_cut(self):
        race = "WARNING: ThreadSanitizer: data race (pid=7)\n" + "  #0 f\n" * 500
        undefined = "/a/b.cc:1:2: runtime error: signed integer overflow\n  #0 g\nSUMMARY: u"
        _, lines = summarise({"a": "fail"}, output=f"==================\n{race}\n{undefined}\n{undefined}\n{undefined}")
        self.assertEqual(lines.count("-- reported in a:"), 3)
        self.assertEqual(lines[1], "WARNING: ThreadSanitizer: data race (pid=7)")
        self.assertEqual(lines.count("  #0 f"), 119)
        self.assertEqual(lines.count("SUMMARY: u"), 2)

    def test_binary_without_tests(self):
        self.expect("0 1 0", 1, {"a": "run"}, {"a": {}})

    def test_nothing_ran(self):
        self.expect("0 1 0", 1, {})

    def test_skips_and_disabled_tests_fail(self):
        self.expect("1 2 0", 1, {"a": "run"}, {"a": {"S": [PASSED, SKIPPED, DISABLED]}})
        self.expect("0 1 0", 1, {"script": "disabled"})

    def test_allowed_skip(self):
        self.expect("1 0 1", 0, {"a": "run"}, {"a": {"GpuCopy": [PASSED, SKIPPED]}},
                    allowed="# comment\n\nGpuCopy.Away: needs a GPU\n")

    def test_allowed_skips_are_for_gpu_tests_with_a_reason(self):
        for line in ("Copy.Away: slow", "GpuCopy.Away", "GpuCopy.Away:"):
            code, lines = summarise({"script": "run"}, allowed=line)
            self.assertEqual(code, 1)
            self.assertIn("is not 'GpuSuite.Test: reason'", lines[-1])


if __name__ == "__main__":
    unittest.main()
