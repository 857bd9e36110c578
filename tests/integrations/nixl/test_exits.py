# SPDX-License-Identifier: Apache-2.0
"""exit() while peers write over sealed tcp, in a Python that has ssl: it ends with the status that it was given."""

import os
import subprocess
import sys
import unittest

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "exiting_program.py")
SEALED = {"PEERLANE_LINKS": "tcp", "PEERLANE_TCP_ENCRYPT": "1"}


class SealedExits(unittest.TestCase):
    def run_order(self, order):
        ran = subprocess.run([sys.executable, PROGRAM, order], capture_output=True, text=True, timeout=120, check=False,
                             env=dict(os.environ, **SEALED))
        said = ran.stdout + ran.stderr
        self.assertEqual(ran.returncode, 0, said)
        self.assertEqual(ran.stdout, "ends\n", said)

    def test_with_ssl_before_the_back_end(self):
        for _ in range(4):
            self.run_order("before")

    def test_with_ssl_after_the_back_end(self):
        for _ in range(4):
            self.run_order("after")
