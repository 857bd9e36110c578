#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The parts of tests/guest that need no machine: its cache, its choice of a kernel, its rows, its rule of counters, its
reports, and what it says where a guest cannot be started. tests/guest/boot_test.py has the rest."""

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest
from types import SimpleNamespace

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
KIT = os.path.join(ROOT, "tests", "guest")
sys.path += [KIT, os.path.join(KIT, "inside"), os.path.join(ROOT, "tests", "debian")]
import check_cache
import counters
import image
import rdma_tests
import report
import rows
import shares
import verbs_tools
from devices import wait_until
from problem import Problem


def somebody_waits_for_a_lock():
    """A thread of this process does."""
    with open("/proc/locks", encoding="utf-8") as stream:
        return any(re.search(rf"-> FLOCK .* {os.getpid()} ", line) for line in stream)


class Cache(unittest.TestCase):
    def test_a_second_builder_waits_for_the_first(self):
        with tempfile.TemporaryDirectory() as folder:
            made, paths = [], []

            def build():
                paths.append(check_cache.cached(folder, "key", make))

            second = threading.Thread(target=build)

            def make(part):
                made.append(part)
                if len(made) == 1:
                    second.start()
                    wait_until("the second builder waits, or makes it again", lambda: somebody_waits_for_a_lock() or len(made) > 1)
                with open(os.path.join(part, "vmlinuz"), "w", encoding="utf-8") as stream:
                    stream.write("kernel")

            build()
            second.join()
            self.assertEqual(len(made), 1)
            self.assertEqual(paths, [os.path.join(folder, "key")] * 2)
            self.assertEqual(os.listdir(paths[0]), ["vmlinuz"])

    def test_what_an_interrupted_build_left_is_not_used(self):
        with tempfile.TemporaryDirectory() as folder:
            def breaks(part):
                with open(os.path.join(part, "half"), "w", encoding="utf-8"):
                    raise KeyboardInterrupt

            with self.assertRaises(KeyboardInterrupt):
                check_cache.cached(folder, "key", breaks)
            self.assertFalse(os.path.exists(os.path.join(folder, "key")))
            path = check_cache.cached(folder, "other", lambda part: None)
            self.assertEqual(os.listdir(path), [])
            self.assertEqual(sorted(os.listdir(folder)), ["lock", "other"])


class Kernel(unittest.TestCase):
    NAMES = ["linux-image-7.3.4+deb13-amd64", "linux-image-7.3.10+deb13-amd64", "linux-image-7.3.11+deb13-cloud-amd64",
             "linux-image-7.3.11+deb13-rt-amd64", "linux-image-7.4.1+deb13-amd64", "linux-image-7.3.12+deb13-amd64-dbg",
             "linux-image-7.3.12+deb13-amd64-unsigned", "linux-image-amd64"]

    def test_the_newest_of_the_series_and_no_other_flavour(self):
        self.assertEqual(image.choose_kernel(self.NAMES, "7.3.", "suite"), "7.3.10+deb13-amd64")

    def test_a_series_that_is_not_there_is_named_and_so_is_what_is(self):
        with self.assertRaisesRegex(Problem, r"^suite has no kernel of the series 6\.1\. .*7\.4\.1\+deb13-amd64"):
            image.choose_kernel(self.NAMES, "6.1.", "suite")
        with self.assertRaisesRegex(Problem, "it has: none"):
            image.choose_kernel([], "7.3.", "suite")


class Refusals(unittest.TestCase):
    """Real programs, in an environment that lacks something."""

    def refuse(self, program, arguments, **environment):
        done = subprocess.run([sys.executable, "-B", os.path.join(KIT, program), *arguments], capture_output=True, text=True,
                              check=False, env=os.environ | environment)
        self.assertEqual(done.returncode, 126, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_without_qemu(self):
        said = self.refuse("guest.py", ["run", "true"], PATH="/nonexistent")
        self.assertIn("qemu-system-x86_64 is not installed; Debian's package is qemu-system-x86", said)

    def test_without_qemu_no_row_passes(self):
        with tempfile.TemporaryDirectory() as folder:
            said = self.refuse("rdma_tests.py", [folder, "short"], PATH="/nonexistent")
        self.assertIn("qemu-system-x86", said)
        self.assertEqual(said.splitlines()[-1], "0 passed, 1 failed")

    def test_without_a_network(self):
        with tempfile.TemporaryDirectory() as folder:
            said = self.refuse("guest.py", ["image"], PEERLANE_CHECKS=folder, GUEST_MIRROR="http://127.0.0.1:9/debian",
                               http_proxy="http://127.0.0.1:9")
            self.assertRegex(said, r"apt(-get)? (cannot read trixie-backports .* needs \(a network and a Debian mirror\)|is not)")
            self.assertNotIn("127.0.0.1:9/debian", said)
            self.assertFalse([name for name in os.listdir(os.path.join(folder, "guest")) if re.fullmatch(r"7\.3-\w+", name)])


class Rows(unittest.TestCase):
    def test_the_rows_of_the_tree(self):
        found = rows.read_rows()
        self.assertEqual({row.when for row in found.values()}, {"short", "long", "pair"})
        self.assertEqual(found["peer_dies"].peer_status, 125)

    def test_a_row(self):
        row = rows.parse_row("short link rxva,rxvb PEERLANE_LINKS=self,verbs A='b c' link_tests --gtest_filter=V.*", "here")
        self.assertEqual((row.when, row.name, row.devices), ("short", "link", ["rxva", "rxvb"]))
        self.assertEqual(row.environment, {"PEERLANE_LINKS": "self,verbs", "A": "b c"})
        self.assertEqual(row.command_in("/b"), ["/b/bin/link_tests", "--gtest_filter=V.*"])

    def test_bad_rows_are_named(self):
        for line, why in (("short a -", "is not WHEN NAME"), ("often a - b", "'often' is not short"), ("long:3 a - b", "'long:3'"),
                          ("short a - B=c", "names no program")):
            with self.subTest(line), self.assertRaisesRegex(SystemExit, "^here: .*" + why):
                rows.parse_row(line, "here")

    def test_a_name_occurs_once(self):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as stream:
            stream.write("short a - b\nlong a - c\n")
            stream.flush()
            with self.assertRaisesRegex(SystemExit, ":2: there is a row 'a' already"):
                rows.read_rows(stream.name)


def growth(packets, size, received=None):
    received = packets if received is None else received
    return {"sent_pkts": packets, "rcvd_pkts": received, "sent_bytes": size, "rcvd_bytes": size if received else 0}


class CounterRule(unittest.TestCase):
    SAYS = "hello\nmoved 8192 bytes\nmoved 4096 bytes\n"  # 3 packets

    def test_growth_by_the_bytes_that_moved(self):
        self.assertIsNone(counters.objection(self.SAYS, growth(3, 12288), ["rxe0"]))

    def test_too_few_packets_or_bytes(self):
        self.assertIn("3 pkts at least; of rxe0, sent_pkts grew by 2", counters.objection(self.SAYS, growth(2, 12288), ["rxe0"]))
        self.assertIn("12288 bytes at least", counters.objection(self.SAYS, growth(3, 12287), ["rxe0"]))
        self.assertIn("rcvd_pkts by 2", counters.objection(self.SAYS, growth(3, 12288, 2), ["rxe0"]))

    def test_a_program_that_says_nothing(self):
        for said in ("", "moved 0 bytes\n", "it moved 4096 bytes\n", "moved 4096 bytes, maybe\n"):
            with self.subTest(said):
                self.assertIn("never says", counters.objection(said, growth(9, 99999), ["rxe0"]))

    def test_of_two_guests_each_sees_half(self):
        self.assertIsNone(counters.objection(self.SAYS, growth(2, 8000, 1), ["rxe0"], both_ends_here=False))
        self.assertIsNotNone(counters.objection(self.SAYS, growth(1, 8000, 1), ["rxe0"], both_ends_here=False))
        self.assertIsNotNone(counters.objection(self.SAYS, growth(9, 99999, 0), ["rxe0"], both_ends_here=False))

    def test_bytes_that_tools_report(self):
        self.assertEqual(verbs_tools.bytes_of("13107200 bytes in 0.28 seconds = 376.12 Mbit/sec\n"), 13107200)
        self.assertEqual(verbs_tools.bytes_of(" #bytes     #iterations\n 65536      200              84.63    84.63  \t\t 0.1\n"), 13107200)
        with self.assertRaises(RuntimeError):
            verbs_tools.bytes_of("nothing\n")


class Shares(unittest.TestCase):
    LINE = "  a thread-7  [00{}] d..2.  10.{:06}: sched_switch: prev_comm={} prev_pid={} prev_prio=120 prev_state=R ==> next_comm=b next_pid=9 next_prio=120\n"

    def test_of_each_kind(self):
        trace = "".join(self.LINE.format(*each) for each in (
            (0, 0, "b", 9), (0, 100, "peerlane-bench", 7), (1, 100, "swapper/1", 0), (0, 300, "kworker/u8:2", 37), (0, 400, "exe", 8),
            (1, 600, "swapper/1", 0), (0, 500, "sh", 12)))
        self.assertEqual(shares.shares_of(trace, {7: True, 8: False}),
                         ({"device": 0.2, "posting": 0.1, "progress": 0.1, "other": 0.1, "idle": 0.5}, 10000))

    def test_nothing_recorded(self):
        with self.assertRaisesRegex(RuntimeError, "no switch"):
            shares.shares_of("# tracer: nop\n", {})


class Reports(unittest.TestCase):
    def test_failures_and_skips_survive_being_put_together(self):
        with tempfile.TemporaryDirectory() as folder:
            inner = report.Report(os.path.join(folder, "inner.json"))
            for outcome in ("passed", "failed", "skipped"):
                inner.add("row", "S." + outcome, outcome, "why")
            outer = report.Report(os.path.join(folder, "outer.json"))
            self.assertEqual(outer.take(inner.path, "[1]"), 3)
            self.assertEqual((outer.counts(), outer.failed), ((1, 1, 1), 2))
            self.assertEqual(report.read_outcomes(outer.path), [("row[1].S.passed", "passed"), ("row[1].S.failed", "failed"),
                                                                ("row[1].S.skipped", "skipped")])
            with open(outer.path, encoding="utf-8") as stream:
                self.assertEqual(json.load(stream)["testsuites"][0]["testsuite"][1]["failures"], [{"failure": "why"}])

    def judged(self, status, expected=0, outcomes=(), names=("a",)):
        """(failures, what stands in the report) after a guest that ended so and wrote these outcomes of rows."""
        with tempfile.TemporaryDirectory() as folder:
            guest = SimpleNamespace(folder=os.path.join(folder, "guest", "short"))
            os.makedirs(guest.folder)
            inner = report.Report(os.path.join(guest.folder, "report.json"))
            for name, outcome in outcomes:
                inner.add(name, "row", outcome)
            outer = report.Report(os.path.join(folder, "all.json"))
            outer.add("of another guest", "row", "failed")
            with contextlib.redirect_stdout(io.StringIO()):
                rdma_tests.judge(outer, guest, list(names), status, expected)
            return outer.failed - 1, outer.suites

    def test_how_a_guest_ended_is_judged(self):
        self.assertEqual(self.judged(0, outcomes=[("a", "passed")])[0], 0)
        self.assertEqual(self.judged(1, outcomes=[("a", "failed")])[0], 1)
        for status, words in ((1, "it ended with 1"), (124, "the time was over"), (125, "the guest died"), (0, "without rows: b")):
            with self.subTest(status):
                failed, suites = self.judged(status, outcomes=[("a", "passed")], names=["a", "b"] if status == 0 else ["a"])
                self.assertEqual(failed, 1)
                self.assertIn(words, suites["guest/short"][0]["failures"][0]["failure"])

    def test_a_guest_that_has_to_die(self):
        self.assertEqual(self.judged(125, expected=125)[0], 0)
        self.assertEqual(self.judged(0, expected=125, outcomes=[("a", "passed")])[0], 1)
        self.assertEqual(self.judged(124, expected=125)[0], 1)


if __name__ == "__main__":
    unittest.main()
