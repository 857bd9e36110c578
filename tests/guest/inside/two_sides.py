#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Usage: two_sides.py pingpong|write_bandwidth DEVICE[,DEVICE]. Both sides in this guest; or, with ROLE set, one of them."""

import os
import sys

import verbs_tools


def main():
    tool = {"pingpong": verbs_tools.pingpong, "write_bandwidth": verbs_tools.write_bandwidth}[sys.argv[1]]
    devices = sys.argv[2].split(",")
    if "ROLE" in os.environ:
        verbs_tools.expect_success(verbs_tools.one_side(tool, devices[0]))
    else:
        verbs_tools.expect_success(*verbs_tools.both_sides(tool, devices))


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, OSError) as problem:
        sys.exit(f"two_sides.py: {problem}")
