#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of the back end for NIXL inside a wheel. Usage: nixl_tests.py WHEEL_FOLDER BUILD_FOLDER [TEST...]

WHEEL_FOLDER is where pip put nixl-cu12 and numpy (--target); TEST is a module, class or method, such as
test_peers.Release. The last line is "N passed, N failed".
"""

import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    wheel, build, *names = sys.argv[1:]
    # Partners are processes of their own.
    os.environ["NIXL_WHEEL"] = os.path.abspath(wheel)
    os.environ["PYTHONPATH"] = os.path.abspath(wheel)
    os.environ["NIXL_PLUGIN_DIR"] = os.path.join(os.path.abspath(build), "lib/nixl")
    os.environ["NIXL_TEST_PROGRAM"] = os.path.join(os.path.abspath(build), "bin/peerlane")
    os.environ["NIXL_TEST_VERBS"] = os.path.join(os.path.abspath(build), "software_hca/libibverbs.so.1")
    # Tests provoke errors; NIXL's own words about them are of no use.
    os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")
    sys.path[:0] = [os.environ["NIXL_WHEEL"], HERE]
    loader = unittest.TestLoader()
    tests = loader.loadTestsFromNames(names) if names else loader.discover(HERE)
    result = unittest.TextTestRunner(verbosity=2).run(tests)
    # A test of several subtests may fail several times.
    unwell = [test for test, _ in result.failures + result.errors + result.skipped] + result.unexpectedSuccesses
    bad = len({getattr(test, "test_case", test).id() for test in unwell})
    good = max(result.testsRun - bad, 0)
    bad += not result.testsRun
    print(f"{good} passed, {bad} failed", flush=True)
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
