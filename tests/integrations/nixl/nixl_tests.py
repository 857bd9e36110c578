#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs tests of the back end for NIXL inside a wheel. Usage: nixl_tests.py [--report FILE] [--only TEST] BUILD_FOLDER [TEST...]

The environment's NIXL_WHEEL names the folder where pip put nixl-cu12 and numpy (scripts/nixl_wheel.sh); TEST is a module,
class or method, such as test_peers.Release. --report writes all outcomes in GoogleTest's form. The last line is "N passed,
N failed".
"""

import argparse
import json
import os
import sys
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


class Result(unittest.TextTestResult):
    """Prints when each test begins and ends, as GoogleTest does."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.began = 0.0
        self.seconds = {}

    def startTest(self, test):
        print(f"[ RUN      ] {test.id()}", flush=True)
        self.began = time.monotonic()
        super().startTest(test)

    def stopTest(self, test):
        super().stopTest(test)
        self.stream.flush()
        self.seconds[test.id()] = time.monotonic() - self.began
        wrong = self.said().get(test.id(), [])
        for text in wrong:
            print(text)
        print(f"[  FAILED  ] {test.id()}" if wrong else f"[       OK ] {test.id()}", flush=True)

    def said(self):
        """{test: what is wrong with it}; a test of several subtests may fail several times, one that was skipped has failed."""
        wrong = self.failures + self.errors + self.skipped + [(test, "it passed") for test in self.unexpectedSuccesses]
        found = {}
        for test, text in wrong:
            found.setdefault(getattr(test, "test_case", test).id(), []).append(text)
        return found

    def write(self, path):
        wrong = self.said()
        suites = {}
        for name in [*self.seconds, *(name for name in wrong if name not in self.seconds)]:  # those of a class's set-up
            suite, _, test = name.rpartition(".")
            entry = {"name": test, "status": "RUN", "result": "COMPLETED", "time": f"{self.seconds.get(name, 0):.3f}s"}
            if name in wrong:
                entry["failures"] = [{"failure": text} for text in wrong[name]]
            suites.setdefault(suite, []).append(entry)
        with open(path, "w", encoding="utf-8") as stream:
            json.dump({"testsuites": [{"name": name, "testsuite": tests} for name, tests in suites.items()]}, stream)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--report")
    parser.add_argument("build")
    parser.add_argument("--only", metavar="TEST", help="in place of all that is named after it")
    parser.add_argument("tests", nargs="*")
    chosen = parser.parse_args()
    build = os.path.abspath(chosen.build)
    if "NIXL_WHEEL" not in os.environ:
        parser.error("NIXL_WHEEL does not say where the wheel is; scripts/test.sh nixl gets it and sets that")
    # Partners are processes of their own.
    os.environ["NIXL_WHEEL"] = os.environ["PYTHONPATH"] = os.path.abspath(os.environ["NIXL_WHEEL"])
    os.environ["NIXL_PLUGIN_DIR"] = os.path.join(build, "lib/nixl")
    os.environ["NIXL_TEST_PROGRAM"] = os.path.join(build, "bin/peerlane")
    os.environ["NIXL_TEST_VERBS"] = os.path.join(build, "software_hca/libibverbs.so.1")
    # Tests provoke errors; NIXL's own words about them are of no use.
    os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")
    sys.path[:0] = [os.environ["NIXL_WHEEL"], HERE]
    loader = unittest.TestLoader()
    names = [chosen.only] if chosen.only else chosen.tests
    tests = loader.loadTestsFromNames(names) if names else loader.discover(HERE)
    result = unittest.TextTestRunner(verbosity=2, resultclass=Result).run(tests)
    if chosen.report:
        result.write(chosen.report)
    bad = len(result.said())
    good = max(result.testsRun - bad, 0)
    bad += not result.testsRun
    print(f"{good} passed, {bad} failed", flush=True)
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
