#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo of the command line, between two processes of this guest."""

import os

program = os.path.join(os.environ["BUILD"], "bin", "peerlane")
os.execv(program, [program, "demo"])
