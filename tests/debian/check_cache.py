# SPDX-License-Identifier: Apache-2.0
"""What tests download or make once and keep: in PEERLANE_CHECKS, else in peerlane-checks in the user's cache folder."""

import fcntl
import glob
import os
import shutil


def cache_folder(name):
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(os.environ.get("PEERLANE_CHECKS") or os.path.join(cache, "peerlane-checks"), name)


def cached(folder, key, make):
    """folder/key, which make(path) fills when it is not there. A builder that comes second waits for the first, and
    what an interrupted one left is thrown away: a folder gets its name when it is whole."""
    whole = os.path.join(folder, key)
    if os.path.isdir(whole):
        return whole
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.isdir(whole):
            for left in glob.glob(os.path.join(glob.escape(folder), "*.part")):
                shutil.rmtree(left)
            part = whole + ".part"
            os.mkdir(part)
            make(part)
            os.rename(part, whole)
    return whole
