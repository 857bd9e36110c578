# SPDX-License-Identifier: Apache-2.0
"""Tests that failed once and not again: those of this run, and those that somebody has written down.

.ci/unsteady.txt, one test a line: DATE | TEST | FIRST OUTPUT | SUSPECTED CAUSE (as in 2026-11-28). A line excuses the test for
two weeks from its date."""

import datetime
import json
import os

MOST_IN_LANDING_CHECK = 3
DAYS = 14


def read_excuses(path, today):
    """({test: its line} of those that still hold, [line] of those that do not)"""
    holding, expired = {}, []
    with open(path, encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            parts = [part.strip() for part in line.split("|")]
            try:
                date = datetime.date.fromisoformat(parts[0])
            except ValueError:
                date = None
            # Tomorrow is today east of here.
            if len(parts) != 4 or not all(parts) or date is None or date > today + datetime.timedelta(days=1):
                raise SystemExit(f"{path}:{number}: '{line}' is not 'DATE | TEST | FIRST OUTPUT | SUSPECTED CAUSE', "
                                 f"with a date until today like {today}")
            if (today - date).days > DAYS:
                expired.append(line)
            else:
                holding[parts[1]] = line
    return holding, expired


class Ledger:
    """What all suites of one run of the checks found, in a file that they share: unsteady tests and the slowest ones."""

    def __init__(self, path):
        self.path = path
        self.unsteady, self.slowest = [], []
        if os.path.exists(path):
            with open(path, encoding="utf-8") as stream:
                kept = json.load(stream)
            self.unsteady, self.slowest = kept["unsteady"], kept["slowest"]

    def keep(self):
        self.slowest = sorted(self.slowest, reverse=True)[:10]
        os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
        with open(self.path, "w", encoding="utf-8") as stream:
            json.dump({"unsteady": self.unsteady, "slowest": self.slowest}, stream, indent=1)

    def report(self):
        """Lines for the end of the whole run."""
        lines = []
        if self.slowest:
            lines.append("the ten slowest tests")
            lines += [f"{seconds:8.1f} s  {name}  ({suite})" for seconds, name, suite in self.slowest]
        if self.unsteady:
            lines.append(f"{len(self.unsteady)} unsteady tests (failed once, and not in the runs after it), with their first output")
            for one in self.unsteady:
                lines += [f"UNSTEADY {one['name']} ({one['suite']})", *(f"    {line}" for line in one["output"].splitlines())]
        return lines
