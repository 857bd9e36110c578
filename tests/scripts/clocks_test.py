#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/clocks.py finds bounds on time that a busy machine can miss, and nothing else."""

import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "scripts", "clocks.py")
sys.path.insert(0, os.path.dirname(SCRIPT))
import clocks  # noqa: E402  (its folder is known only now)

BOUNDS = (
    "EXPECT_LT(Clock::now() - begin, 5s);",
    "ASSERT_LE(std::chrono::steady_clock::now() - begin,\n          std::chrono::seconds(2));",
    "EXPECT_LT(Clock::now() - begin, kNoticed) << why;",
    "EXPECT_LT(took, milliseconds(isSoftware() ? 5000 : 100));",
    "EXPECT_LT(with, without + milliseconds(100));",
    "EXPECT_LT(*std::min_element(delays.begin(), delays.end()), 50ms);",
    "EXPECT_LT(notes.nanoseconds, 5'000'000'000u);",
    "EXPECT_GT(limit, Clock::now() - begin);",
    "EXPECT_TRUE(Clock::now() - begin < 5s);",
    "EXPECT_TRUE(soon([&] { return isThere(); }, 5s));",
    "EXPECT_TRUE(soon([&] { return isThere(); }, std::chrono::milliseconds(300)));",
    "if (!inSoftware()) EXPECT_LT(Clock::now() - begin, 1s);",
)
NO_BOUNDS = (
    "EXPECT_GE(Clock::now() - begin, 100ms);",
    "ASSERT_LT(Clock::now(), giveUp);",
    "EXPECT_OK(transfer.wait(20s));",
    "EXPECT_TRUE(soon([&] { return isThere(); }));",
    "EXPECT_TRUE(soon([&] { return isThere(); }, 60s));",
    "ASSERT_TRUE(progress->wait([&] { return done.load(); }, Clock::now() + 10s));",
    "EXPECT_LE(Holdings::now().descriptors, descriptors + 4);",
    "EXPECT_LT(first, second);",
    "EXPECT_TRUE(runTwo([&] { while (Clock::now() < end) step(); }));",
)


def found_in(text, path="tests/core/a_test.cc"):
    return clocks.comparisons(path, text)


class Clocks(unittest.TestCase):
    def test_bounds_are_found(self):
        for text in BOUNDS:
            self.assertEqual([(line, reason) for line, _, reason in found_in(f"\n  {text}\n")], [(2, "")], text)

    def test_nothing_else_is(self):
        for text in NO_BOUNDS:
            self.assertEqual(found_in(f"\n  {text}\n"), [], text)

    def test_a_bound_in_the_body_of_a_lambda(self):
        text = "EXPECT_TRUE(runTwo([&] {\n  step();\n  EXPECT_LT(Clock::now() - begin, 1s);\n}));\n"
        self.assertEqual([line for line, _, _ in found_in(text)], [3])

    def test_python(self):
        path = "tests/integrations/a.py"
        for text in ("self.assertLess(time.monotonic() - begin, 5)", "self.assertLessEqual(took, 5)"):
            self.assertEqual(len(found_in(f"    {text}\n", path)), 1, text)
        for text in ("self.assertGreater(time.monotonic() - begin, 5)", "self.assertLess(one, 5)", "self.assertTrue(soon)"):
            self.assertEqual(found_in(f"    {text}\n", path), [], text)

    def test_reasons(self):
        for text in ("  EXPECT_LT(took, 5s);  // clock: a yardstick", "  // clock: a yardstick\n  EXPECT_LT(took, 5s);"):
            self.assertEqual(found_in(text)[0][2], "a yardstick")

    def check(self, text):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "tests", "core"))
            with open(os.path.join(root, "tests", "core", "a_test.cc"), "w", encoding="utf-8") as stream:
                stream.write(text)
            done = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    def test_whole_tree(self):
        self.assertEqual(self.check("EXPECT_LT(took, 5s);  // clock: a yardstick\n")[0], 0)
        status, said = self.check("int x;\nEXPECT_LT(took, 5s);\n")
        self.assertEqual(status, 1)
        self.assertIn("tests/core/a_test.cc:2: [clock]", said)
        status, said = self.check("// clock: nothing is compared here\n")
        self.assertEqual(status, 1)
        self.assertIn("it gives 1 reasons for 0 comparisons", said)


if __name__ == "__main__":
    unittest.main()
