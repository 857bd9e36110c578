# SPDX-License-Identifier: Apache-2.0
"""A child of fork() that inherits agents ends by any way, at once, and its parent's agents go on."""

import os
import subprocess
import sys
import unittest

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "forking_program.py")


class Forks(unittest.TestCase):
    def run_way(self, way):
        ran = subprocess.run([sys.executable, PROGRAM, way], capture_output=True, text=True, timeout=120, check=False)
        said = ran.stdout + ran.stderr
        self.assertEqual(ran.returncode, 0, said)
        self.assertIn("child 0\n", ran.stdout, said)
        self.assertIn("parent DONE\n", ran.stdout, said)
        return ran.stderr

    def test_a_child_may_end_by_any_way(self):
        for way in ("exit", "_exit", "end", "drop"):
            with self.subTest(way):
                self.assertEqual(self.run_way(way), "")

    def test_what_a_child_ends_stays_the_parents(self):
        for way in ("deregister", "remove", "release"):
            with self.subTest(way):
                self.run_way(way)

    def test_a_child_is_told_that_it_needs_an_agent_of_its_own(self):
        self.assertIn("this agent was made before fork(); make a new one in the child", self.run_way("use"))

    def test_an_agent_of_the_childs_own_works(self):
        self.run_way("anew")
