#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/run_suite.py: what fails a run, what is run again, and what a run again decides.

Usage: run_suite_test.py NOISE_CASES [TEST...]; NOISE_CASES is the program of noise_cases.cc."""

import datetime
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "scripts", "run_suite.py")
sys.path.insert(0, os.path.join(ROOT, "scripts"))
from suite.faults import fault_in  # noqa: E402
NOISE_CASES = ""
CASES = 14  # in noise_cases.cc
REPORTING = "int main() { int* gone = new int(1); delete gone; return *gone == 2; }"


class Answer:
    def __init__(self, done, ledger):
        self.status = done.returncode
        self.lines = (done.stdout + done.stderr).splitlines()
        self.text = "\n".join(self.lines)
        last = self.lines[-1] if self.lines else ""
        self.counts = tuple(map(int, last.split())) if re.fullmatch(r"\d+ \d+ \d+", last) else ()
        self.unsteady = [one["name"] for one in ledger.get("unsteady", [])]


class Bed(unittest.TestCase):
    """A build folder of its own, with tests that are shell commands or the program of noise_cases.cc."""

    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name
        self.tests = ""
        self.write("allowed", "")
        self.write("unsteady", "")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as stream:
            stream.write(text)

    def add(self, name, *command, **properties):
        quoted = " ".join(f"[==[{word}]==]" for word in command)
        self.tests += f"add_test({name} {quoted})\n"
        for key, value in properties.items():
            self.tests += f"set_tests_properties({name} PROPERTIES {key} [==[{value}]==])\n"

    def add_shell(self, name, text, **properties):
        self.add(name, "/bin/sh", "-c", text, **properties)

    def add_noise(self, *ways, name="noise", **properties):
        given = f"WAYS={' '.join(ways)};NOISE_FOLDER={self.folder};REPORTING_CHILD={self.path('child')}"
        self.add(name, NOISE_CASES, "--gtest_output=json:replaced", **({"TIMEOUT": 20, "ENVIRONMENT": given} | properties))

    def run_suite(self, *choice, landing=True, **variables):
        self.write("CTestTestfile.cmake", self.tests)
        command = [sys.executable, SCRIPT, self.folder, "--ledger", self.path("ledger"), "--unsteady", self.path("unsteady"),
                   "--allowed-skips", self.path("allowed"), "--jobs", "3", "--", *choice]
        environment = os.environ | {"CI": "true" if landing else "", "PEERLANE_CHECKS": self.path("cache"),
                                    "NETNS": "", "GTEST_FILTER": "*"} | variables
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        ledger = {}
        if os.path.exists(self.path("ledger")):
            with open(self.path("ledger"), encoding="utf-8") as stream:
                ledger = json.load(stream)
        return Answer(done, ledger)

    def expect(self, counts, *arguments, **more):
        answer = self.run_suite(*arguments, **more)
        self.assertEqual((answer.counts, answer.status), (counts, 1 if counts[1] else 0), answer.text)
        return answer


class Noise(Bed):
    def test_all_is_well(self):
        self.add_noise()
        self.add_shell("script", "true")
        self.assertEqual(self.expect((CASES + 1, 0, 0)).unsteady, [])

    def test_fails_always(self):
        self.add_noise("FailsAlways")
        answer = self.expect((CASES - 1, 1, 0))
        self.assertIn("FAILED noise: Noise.FailsAlways: failed, and again: failed, alone, in run 1 of 3", answer.text)
        self.assertIn("as always", answer.text)

    def test_fails_once(self):
        self.add_noise("FailsOnce")
        answer = self.expect((CASES, 0, 0))
        self.assertEqual(answer.unsteady, ["noise: Noise.FailsOnce"])
        with open(self.path("ledger"), encoding="utf-8") as stream:
            self.assertIn("the first time", json.load(stream)["unsteady"][0]["output"])

    def test_fails_only_beside_others(self):
        self.add_shell("other", "touch here; sleep 0.3; rm here", WORKING_DIRECTORY=self.folder)
        self.add_noise("FailsBesideOthers")
        answer = self.expect((CASES, 1, 0))
        self.assertRegex(answer.text, "failed, and again: failed, beside others, in run [0-9]+ of 20")

    def test_faults_of_those_beside(self):
        for number, (what, why) in enumerate({"kill -SEGV $$": "a crash of other",
                                              "echo 7 wrong; exit 1": "wrong bytes of other",
                                              "echo '==7==ERROR: AddressSanitizer: x'": "a sanitizer's report of other"}.items()):
            with self.subTest(what):
                self.tests = ""
                self.add_shell("other", f"test -e ran{number} || {{ touch ran{number}; sleep 0.5; exit 0; }}; {what}",
                               WORKING_DIRECTORY=self.folder)
                self.add_shell("subject", f"test -e sub{number} || {{ touch sub{number}; exit 1; }}; sleep 0.1",
                               WORKING_DIRECTORY=self.folder)
                self.assertIn(f"failed, and again: {why}", self.expect((1, 1, 0)).text)

    def test_what_other_cases_say_is_not_of_this_one(self):
        self.add_noise("FailsOnce")  # SaysMuch comes after it
        self.assertEqual(self.expect((CASES, 0, 0)).unsteady, ["noise: Noise.FailsOnce"])

    def test_fault_before_a_hang(self):
        self.add_noise("WrongBytesOnce", "HangsOnce", TIMEOUT=5)
        answer = self.run_suite()
        self.assertEqual(answer.status, 1)
        self.assertIn("FAILED noise: Noise.WrongBytesOnce: wrong bytes", answer.text)

    def test_status_of_a_child_that_a_signal_ended(self):
        self.add_noise("ChildEndsBySignalOnce")
        self.assertIn("Noise.ChildEndsBySignalOnce: a crash", self.expect((CASES - 1, 1, 0)).text)

    def test_report_that_comes_late(self):
        late = "sleep 1; echo '==9==ERROR: LeakSanitizer' >${ASAN_OPTIONS##*log_path=}.9"
        self.add_shell("parent", f"({late}) & exit 0")
        self.add_shell("other", "sleep 2")
        self.assertIn("FAILED parent: a sanitizer's report, report.9", self.expect((2, 1, 0)).text)

    def test_case_of_a_program_with_a_report(self):
        self.write("cases.py", "import json, sys\nopen('words', 'a').write(' '.join(sys.argv[3:]) + '\\n')\n"
                   "bad = '--only' not in sys.argv\nopen(sys.argv[2], 'w').write(json.dumps({'testsuites': [{'name': 'm.C',"
                   " 'testsuite': [{'name': 't', 'status': 'RUN', 'result': 'COMPLETED'} |"
                   " ({'failures': [{'failure': 'late'}]} if bad else {})]}]}))\nsys.exit(bad)\n")
        self.add("cases", sys.executable, self.path("cases.py"), "--report", "replaced", "m", WORKING_DIRECTORY=self.folder)
        self.assertEqual(self.expect((1, 0, 0)).unsteady, ["cases: m.C.t"])
        with open(self.path("words"), encoding="utf-8") as stream:
            self.assertEqual(set(stream.read().splitlines()), {"m", "m --only m.C.t"})

    def test_hangs_once(self):
        self.add_noise("HangsOnce", TIMEOUT=10)
        answer = self.expect((CASES, 0, 0))
        self.assertEqual(answer.unsteady, ["noise: Noise.HangsOnce"])
        self.assertIn("-- noise hangs: 10 s are over. Its threads:", answer.text)
        self.assertRegex(answer.text, r"\bpause\b|wchan")

    def test_hangs_always(self):
        self.add_shell("hangs", "sleep 1000 & echo $! >child; wait", TIMEOUT=2, WORKING_DIRECTORY=self.folder)
        answer = self.expect((0, 1, 0))
        self.assertIn("hung, and again: hung, alone, in run 1 of 3", answer.text)
        self.assertIn("sleep 1000", answer.text)  # a child's stack, too
        with open(self.path("child"), encoding="utf-8") as stream:
            child = stream.read().strip()
        if os.path.exists(f"/proc/{child}/stat"):  # nobody has collected it
            with open(f"/proc/{child}/stat", encoding="utf-8") as stream:
                self.assertEqual(stream.read().rsplit(")", 1)[1].split()[0], "Z")

    def test_says_at_its_end_what_was_running(self):
        self.add_shell("hangs", "echo begins >began; exec sleep 1000", WORKING_DIRECTORY=self.folder)
        self.write("CTestTestfile.cmake", self.tests)
        command = [sys.executable, SCRIPT, self.folder, "--ledger", self.path("ledger")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
            while not os.path.exists(self.path("began")):
                self.assertIsNone(run.poll())
            run.terminate()
            _, said = run.communicate()
        self.assertEqual(run.returncode, 128 + signal.SIGTERM)
        self.assertIn("ended by SIGTERM while it ran hangs", said)
        self.assertRegex(said, r"sleep 1000 ?\n[Tt]hread ")

    def test_python_that_hangs(self):
        self.write("hangs.py", "import time\ndef waits_for_ever():\n    time.sleep(1000)\nwaits_for_ever()\n")
        self.add("python", sys.executable, self.path("hangs.py"), TIMEOUT=1)
        answer = self.expect((0, 1, 0))
        self.assertIn("in waits_for_ever", answer.text)
        self.assertIn("hung, and again: hung", answer.text)

    def test_crashes_once(self):
        self.add_noise("CrashesOnce")
        answer = self.expect((0, 1, 0))
        self.assertIn("FAILED noise: Noise.CrashesOnce: a crash", answer.text)
        self.assertNotIn("again:", answer.text)

    def test_assertion_that_ends_the_program(self):
        self.add_noise("AbortsByAnAssertionOnce")
        answer = self.expect((CASES, 0, 0))
        self.assertEqual(answer.unsteady, ["noise: Noise.AbortsByAnAssertionOnce"])

    def test_crash_of_a_child(self):
        self.add_noise("CrashesAChildOnce")
        self.assertIn("FAILED noise: Noise.CrashesAChildOnce: a crash", self.expect((CASES - 1, 1, 0)).text)

    def test_report_of_a_child_in_a_program_that_passes(self):
        source = self.path("child.cc")
        self.write("child.cc", REPORTING)
        subprocess.run(["g++", "-g1", "-fsanitize=address", source, "-o", self.path("child")], check=True)
        self.add_noise("ChildReportsOnce", WORKING_DIRECTORY=self.folder)
        answer = self.expect((CASES, 1, 0))
        self.assertRegex(answer.text, r"FAILED noise: a sanitizer's report, report\.\d+")
        self.assertIn("heap-use-after-free", answer.text)
        self.assertNotIn("again:", answer.text)

    def test_empty_report_and_remark_without_one(self):
        where = "${ASAN_OPTIONS##*log_path=}.1"
        self.add_shell("empty", f"touch {where}")
        self.add_shell("remark", f"echo '==7==Running thread 8 was not suspended. False leaks are possible.' >{where}")
        self.assertIn("FAILED empty: a sanitizer's report", self.expect((2, 1, 0)).text)

    def test_report_on_the_output_of_a_program_that_passes(self):
        self.add_shell("talks", "echo '==7==ERROR: AddressSanitizer: heap-use-after-free'")
        self.expect((1, 1, 0))

    def test_wrong_bytes_once(self):
        self.add_noise("WrongBytesOnce")
        self.assertIn("FAILED noise: Noise.WrongBytesOnce: wrong bytes", self.expect((CASES - 1, 1, 0)).text)

    def test_finding_of_a_fuzzer(self):
        self.add_shell("replay", "test -e ran || { touch ran; exit 1; }", LABELS="fuzz", WORKING_DIRECTORY=self.folder)
        self.assertIn("FAILED replay: a fuzzer's finding", self.expect((0, 1, 0)).text)

    def test_row_of_a_guest(self):
        self.add_shell("rows", "test -e ran || { touch ran; exit 1; }", LABELS="guest", WORKING_DIRECTORY=self.folder)
        self.assertIn("FAILED rows: a row of a guest", self.expect((0, 1, 0)).text)

    def test_script_that_fails_once(self):
        self.add_shell("script", "test -e ran || { touch ran; echo flaky; exit 1; }", WORKING_DIRECTORY=self.folder)
        self.assertEqual(self.expect((1, 0, 0)).unsteady, ["script"])


class Unsteady(Bed):
    def add_four(self, count):
        for number in range(count):
            self.add_shell(f"script{number}", f"test -e ran{number} || {{ touch ran{number}; exit 1; }}",
                           WORKING_DIRECTORY=self.folder)

    def test_three_pass_the_landing_check(self):
        self.add_four(3)
        self.assertEqual(len(self.expect((3, 0, 0)).unsteady), 3)

    def test_four_do_not(self):
        self.add_four(4)
        self.expect((0, 4, 0))

    def test_four_of_two_suites_do_not(self):
        self.add_four(4)
        self.expect((2, 0, 0), "-R", "script[01]")
        self.expect((0, 2, 0), "-R", "script[23]")

    def test_summary(self):
        self.add_shell("script", "test -e ran || { touch ran; echo flaky; exit 1; }", WORKING_DIRECTORY=self.folder)
        self.expect((1, 0, 0))
        said = subprocess.run([sys.executable, SCRIPT, "--report", self.path("ledger")], capture_output=True, text=True,
                              check=True).stdout
        self.assertIn("the ten slowest tests", said)
        self.assertIn("UNSTEADY script", said)
        self.assertIn("    flaky", said)

    def excused(self, days, test="script0"):
        date = datetime.date.today() - datetime.timedelta(days=days)
        self.write("unsteady", f"# comment\n\n{date} | {test} | it was late | a timer\n")
        self.add_four(1)

    def test_without_a_line_one_fails_a_persons_run(self):
        self.add_four(1)
        self.assertIn("give it a line in .ci/unsteady.txt", self.expect((0, 1, 0), landing=False).text)

    def test_a_line_excuses_it(self):
        self.excused(14)
        self.expect((1, 0, 0), landing=False)

    def test_a_line_is_of_one_test(self):
        self.excused(0, "another")
        self.expect((0, 1, 0), landing=False)

    def test_an_old_line_does_not(self):
        self.excused(15)
        self.assertIn("no longer excuses its test", self.expect((0, 1, 0), landing=False).text)

    def test_lines_are_complete(self):
        for line in ("2026-01-01 | test | output", "2026-01-01 | test | output | ", "yesterday | a | b | c", "2999-01-01 | a | b | c"):
            self.write("unsteady", line)
            answer = self.run_suite()
            self.assertEqual(answer.status, 1)
            self.assertIn("is not 'DATE | TEST | FIRST OUTPUT | SUSPECTED CAUSE'", answer.text)


class Words(unittest.TestCase):
    """Failures are told by their text."""

    def fault(self, *values):
        lines = "".join(f"\n  {value}\n    Which is: 1-byte object <{number:02d}>" for number, value in enumerate(values))
        return fault_in(f"../tests/some_test.cc:7\nExpected equality of these values:{lines}\n")

    def test_status_codes_are_no_bytes(self):
        self.assertEqual(self.fault("transfer.status().code()", "Code::kTimeout"), "")
        self.assertEqual(self.fault("Code::kOk", "ended"), "")
        self.assertEqual(self.fault("memory[3]", "expected"), "wrong bytes")
        self.assertEqual(self.fault("to[3]", "codeOf(Code::kOk)[0]"), "wrong bytes")


class Counting(Bed):
    def test_failure_after_the_last_test(self):
        self.add("noise", "/bin/sh", "-c", f"{NOISE_CASES} $0; exit 3", "--gtest_output=json:replaced",
                 ENVIRONMENT=f"NOISE_FOLDER={self.folder}")
        self.assertIn("all tests passed, but the program ended with 3", self.expect((CASES, 1, 0)).text)

    def test_crash_after_the_last_test(self):
        self.add("noise", "/bin/sh", "-c", f"{NOISE_CASES} $0; kill -SEGV $$", "--gtest_output=json:replaced",
                 ENVIRONMENT=f"NOISE_FOLDER={self.folder}")
        self.assertIn("FAILED noise: a crash", self.expect((CASES, 1, 0)).text)

    def test_program_without_tests(self):
        self.add_noise(ENVIRONMENT="GTEST_FILTER=None")
        self.assertIn("it holds no such test", self.expect((0, 1, 0)).text)

    def test_nothing_ran(self):
        self.assertIn("no test ran", self.expect((0, 1, 0)).text)

    def test_program_that_is_not_there(self):
        self.add("gone", self.path("gone"))
        answer = self.run_suite()
        self.assertEqual(answer.status, 1)
        self.assertIn("test gone: its program is missing", answer.text)

    def test_skips_fail(self):
        self.add_noise("SkipsItself")
        self.assertIn("Noise.SkipsItself: a test that skipped itself", self.expect((CASES - 1, 1, 0)).text)

    def test_allowed_skips_are_for_gpu_tests_with_a_reason(self):
        for line in ("Copy.Away: slow", "GpuCopy.Away", "GpuCopy.Away:"):
            self.write("allowed", line)
            answer = self.run_suite()
            self.assertEqual(answer.status, 1)
            self.assertIn("is not 'GpuSuite.Test: reason'", answer.text)

    def test_serial_programs_run_alone(self):
        lock = "mkdir lock || exit 1; sleep 0.2; rmdir lock"
        for number in range(3):
            self.add_shell(f"serial{number}", lock, RUN_SERIAL="ON", WORKING_DIRECTORY=self.folder)
        self.assertEqual(self.expect((3, 0, 0)).unsteady, [])

    def test_output_that_a_test_must_print(self):
        self.add_shell("refuses", "echo it has none; exit 1", PASS_REGULAR_EXPRESSION="has none")
        self.expect((1, 0, 0))

    def test_properties_that_it_does_not_know(self):
        self.add_shell("odd", "exit 1", WILL_FAIL="ON")
        answer = self.run_suite()
        self.assertEqual(answer.status, 1)
        self.assertIn("test odd: WILL_FAIL: scripts/suite/programs.py cannot run that", answer.text)


if __name__ == "__main__":
    NOISE_CASES = sys.argv.pop(1)
    unittest.main()
