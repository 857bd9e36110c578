#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The guest kit itself, as far as it takes a machine that boots. Usage: boot_test.py BUILD [TEST...]"""

import json
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.abspath(sys.argv.pop(1))

# Programs that do not what they say, and how the rule answers.
LIARS = {
    "says_too_much": ("rxe0 /bin/echo moved 1000000 bytes", "so 245 pkts at least; of rxe0, sent_pkts grew by 0"),
    "says_nothing": ("rxe0 /bin/echo done", "never says that it moved any bytes"),
    "fails": ("- /bin/sh -c 'exit 3'", "it ended with 3"),
    "is_missing": ("- no_such_program", "No such file"),
    "runs_no_test": ("- os_tests --gtest_filter=No.Such", "it ran no test"),
}


def guest(*arguments, name):
    done = subprocess.run([sys.executable, "-B", os.path.join(HERE, "guest.py"), "run", "--logs", os.path.join(BUILD, "guest"),
                           "--name", name, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


class Boots(unittest.TestCase):
    def test_status_counts_and_liars(self):
        """Also: the build folder is there, and the last line of a command is shown without a line's end."""
        folder = os.path.join(BUILD, "guest", "liars")
        os.makedirs(folder + ".rows", exist_ok=True)
        rows = os.path.join(folder + ".rows", "rows.txt")
        with open(rows, "w", encoding="utf-8") as stream:
            stream.write("".join(f"short {name} {words}\n" for name, (words, _) in LIARS.items()))
        inside = f"python3 tests/guest/inside/run_rows.py --rows {rows} {BUILD} {' '.join(LIARS)}"
        status, said = guest(f"{inside}; echo rows: $?; {BUILD}/bin/os_tests --gtest_filter=Fd.*; echo -n end; exit 7", name="liars")
        self.assertEqual(status, 7, said)
        self.assertIn("rows: 1\n", said)
        self.assertIn("\nend\n", said)
        self.assertRegex(said, r"guest: status 7; tests: [1-9]\d* passed, 0 failed")
        with open(os.path.join(folder, "report.json"), encoding="utf-8") as stream:
            report = {suite["name"]: suite["testsuite"] for suite in json.load(stream)["testsuites"]}
        for name, (_, answer) in LIARS.items():
            with self.subTest(name):
                self.assertEqual([test["name"] for test in report[name]], ["row"])
                self.assertIn(answer, report[name][0]["failures"][0]["failure"])

    def test_the_limit_of_time(self):
        status, said = guest("--limit", "1", "echo begun; sleep infinity", name="limit")
        self.assertEqual(status, 124, said)
        self.assertIn("begun\n", said)

    def test_a_kernel_that_dies_with_a_command_is_not_tried_again(self):
        status, said = guest("echo begun; echo c >/proc/sysrq-trigger; sleep infinity", name="panic")
        self.assertEqual((status, said.count("begun\n")), (125, 1), said)
        with open(os.path.join(BUILD, "guest", "panic", "console.log"), encoding="utf-8", errors="replace") as stream:
            self.assertIn("Kernel panic", stream.read())

    def test_a_kernel_that_dies_before_is_tried_again(self):
        status, said = guest("--memory", "64", "echo begun", name="small")
        self.assertEqual(status, 125, said)
        self.assertNotIn("begun", said)
        self.assertIn("boot 3 of 3", said)

    def test_words_that_qemu_refuses(self):
        status, said = guest("--qemu=-device no-such-device", "true", name="refused")
        self.assertEqual(status, 126, said)
        self.assertIn("no-such-device", said)


if __name__ == "__main__":
    unittest.main()
