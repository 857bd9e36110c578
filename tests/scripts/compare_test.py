#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/compare.py: a loss beyond noise and margin is found, noise and gains are none, and what cannot be compared is said."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "bench", "compare.py")

# Stands in for `peerlane`: writes down its name and words; the n-th call answers with the n-th of its reports.
PROGRAM = """#!/bin/sh
cd {folder}
echo {name} "$@" >>calls
turn=$(cat {name}.turn)
echo $((turn + 1)) >{name}.turn
for report; do :; done
cp {name}.$((turn % {reports})) "$report" || {{ echo "it broke" >&2; exit 1; }}
"""


def make_program(folder, name, rows):
    """rows: [(what differs in the row, its times)]; None: a program that fails."""
    path = os.path.join(folder, name)
    reports = max((len(times) for _, times in rows or []), default=1)
    for turn in range(reports if rows else 0):
        with open(f"{path}.{turn}", "w", encoding="utf-8") as file:
            json.dump({"machine": {"cpu": "none"},
                       "rows": [{"op": "post", "memory": "mapped", "bytes": 8, "blocks": 1, "p50_us": times[turn % len(times)], **key}
                                for key, times in rows]}, file)
    with open(path + ".turn", "w", encoding="utf-8") as file:
        file.write("0")
    with open(path, "w", encoding="utf-8") as file:
        file.write(PROGRAM.format(folder=folder, name=name, reports=reports))
    os.chmod(path, 0o755)
    return path


class TestCompare(unittest.TestCase):
    def compare(self, old, new, *arguments):
        """old, new: lists of (what differs in the row, times). Returns (status, output, document, calls)."""
        with tempfile.TemporaryDirectory() as folder:
            programs = [make_program(folder, "old", old), make_program(folder, "new", new)]
            report = os.path.join(folder, "report.json")
            done = subprocess.run([sys.executable, SCRIPT, *programs, "--only", "post*", "--json", report, *arguments],
                                  capture_output=True, text=True, check=False)
            document = {}
            if os.path.exists(report):
                with open(report, encoding="utf-8") as file:
                    document = json.load(file)
            calls = []
            if os.path.exists(os.path.join(folder, "calls")):
                with open(os.path.join(folder, "calls"), encoding="utf-8") as file:
                    calls = file.read().splitlines()
            return done.returncode, done.stdout + done.stderr, document, calls

    def expect(self, status, worse, old, new, *arguments):
        answer = self.compare(old, new, *arguments)
        self.assertEqual(answer[0], status, answer[1])
        self.assertEqual([row["row"] for row in answer[2]["rows"] if row["worse"]], worse)
        return answer

    def test_the_same_is_not_worse(self):
        self.expect(0, [], [({}, [1.0])], [({}, [1.0])])

    def test_a_loss_beyond_margin_and_noise_is_worse(self):
        _, output, document, _ = self.expect(1, ["post -b 8 -e 4K -f 512: post mapped 8"], [({}, [1.0])], [({}, [1.05])])
        self.assertIn("1 rows compared, 1 worse", output)
        self.assertAlmostEqual(document["rows"][0]["change"], 1 / 1.05 - 1, places=4)

    def test_a_gain_is_not_worse(self):
        self.expect(0, [], [({}, [1.0])], [({}, [0.5])])

    def test_a_loss_within_the_margin_is_not_worse(self):
        self.expect(0, [], [({}, [1.0])], [({}, [1.025])])
        self.expect(1, ["post -b 8 -e 4K -f 512: post mapped 8"], [({}, [1.0])], [({}, [1.025])], "--margin", "0.01")

    def test_a_loss_within_the_spread_of_the_old_build_is_not_worse(self):
        # Calls of the old build alternate between the two series of the A/A pair, but for where the order turns.
        noisy = [({}, [1.0, 1.2])]
        _, output, document, _ = self.expect(0, [], noisy, [({}, [1.15])])
        self.assertGreater(document["rows"][0]["spread"], 0.05)
        self.expect(1, ["post -b 8 -e 4K -f 512: post mapped 8"], noisy, [({}, [2.0])])

    def test_one_bad_run_does_not_count(self):
        self.expect(0, [], [({}, [1.0])], [({}, [1.0, 1.0, 9.0, 1.0, 1.0, 1.0, 1.0])])

    def test_seven_of_each_in_turns(self):
        calls = self.expect(0, [], [({}, [1.0])], [({}, [1.0])])[3]
        names = [line.split()[0] for line in calls]
        self.assertEqual((names.count("old"), names.count("new")), (14, 7))
        # Every round has each of them, and who is the first changes.
        rounds = [names[i:i + 3] for i in range(0, 21, 3)]
        self.assertTrue(all(sorted(turn) == ["new", "old", "old"] for turn in rounds), rounds)
        self.assertGreater(len({tuple(turn) for turn in rounds}), 2)

    def test_each_row_has_a_verdict_of_its_own(self):
        old = [({"bytes": 8}, [1.0]), ({"bytes": 4096}, [2.0]), ({"bytes": 8, "row": "exchange, 8 blocks"}, [3.0])]
        new = [({"bytes": 8}, [1.0]), ({"bytes": 4096}, [3.0]), ({"bytes": 8, "row": "exchange, 32 blocks"}, [3.0])]
        _, _, document, _ = self.expect(1, ["post -b 8 -e 4K -f 512: post mapped 4096"], old, new)
        self.assertEqual(len(document["rows"]), 3)

    def test_a_row_of_one_build_is_named_and_fails_nothing(self):
        _, output, _, _ = self.expect(0, [], [({}, [1.0])], [({}, [1.0]), ({"bytes": 64}, [1.0])])
        self.assertIn("post mapped 64", output)
        self.assertIn("not in every run of: old, old_again", output)

    def test_nothing_in_common_is_an_error(self):
        status, output, _, _ = self.compare([({}, [1.0])], [({"bytes": 64}, [1.0])])
        self.assertEqual(status, 2)
        self.assertIn("no row in common", output)

    def test_a_program_that_fails_is_an_error(self):
        status, output, _, _ = self.compare([({}, [1.0])], None)
        self.assertEqual(status, 2)
        self.assertIn("it broke", output)

    def test_a_build_without_the_operation_misses_its_rows_alone(self):
        rows = [({}, [1.0])]
        with tempfile.TemporaryDirectory() as folder:
            new = make_program(folder, "new", rows)
            old = os.path.join(folder, "old")
            with open(old, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\n"
                           "if [ $2 = post ]; then echo 'operation: post not in {put,get}' >&2; exit 105; fi\n"
                           f"exec {new} \"$@\"\n")
            os.chmod(old, 0o755)
            done = subprocess.run([sys.executable, SCRIPT, old, new, "--only", "[pb]*s*", "--rounds", "2"],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("not in every run of: old, old_again", done.stdout)

    def test_apart_takes_at_most_twice_as_long_as_one_registration(self):
        apart = {"op": "put registered apart", "blocks": 4000, "bytes": 4000 * 8000}
        name = "post -b 8 -e 4K -f 512: put registered apart mapped 4000 x 8000"
        fast, slow = ([({**apart, "times_of_one_registration": times}, [1.0])] for times in (1.9, 2.1))
        _, output, document, _ = self.expect(0, [], slow, fast)
        self.assertIn("1.90 x one registration", output)
        self.assertEqual(document["rows"][0]["times_of_one_registration"], 1.9)
        self.expect(1, [name], fast, slow)

    def test_bad_arguments_are_named(self):
        rows = [({}, [1.0])]
        for arguments, said in ((("--rounds", "1"), "--rounds is 1"), (("--only", "nothing"), "--only is nothing"),
                                (("--device", "cuda:0"), "--device is cuda:0")):
            status, output, _, _ = self.compare(rows, rows, *arguments)
            self.assertEqual(status, 2, output)
            self.assertIn(said, output)

    def test_devices_reach_the_program(self):
        calls = self.compare([({}, [1.0])], [({}, [1.0])], "--rows", "port", "--only", "port", "--rounds", "2", "--also=-n 5")[3]
        self.assertEqual(calls[0].split()[1:-1], ["bench", "port", "--device", "cuda:0,cuda:0", "-n", "5", "--json"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0]])
