# SPDX-License-Identifier: Apache-2.0
"""What a test needs and does not find: a sentence for the person who asked for one."""

import os
import shutil


class Problem(Exception):
    pass


def need_program(program, package):
    # An ordinary user's PATH has no folder of the system's programs.
    os.environ["PATH"] = ":".join(filter(None, [os.environ.get("PATH"), "/usr/sbin", "/sbin"]))
    if not shutil.which(program):
        raise Problem(f"{program} is not installed; Debian's package is {package} (scripts/install_packages.sh test installs it)")
