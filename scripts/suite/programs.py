# SPDX-License-Identifier: Apache-2.0
"""Test programs as ctest knows them, and one run of one of them. A run keeps the program's output in a file, its sanitizers'
reports in a folder of its own, and prints every thread's stack before it ends a program that hangs.

ctest is the list of tests, not their runner: it keeps neither the signal that ended a program nor when it began, and it
ends a program that hangs without a look at it."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field

from suite.stacks import descendants, stacks_of

CTEST_LIMIT = 1500  # seconds, of a test without TIMEOUT: ctest's own
SANITIZERS = ("ASAN", "LSAN", "TSAN", "UBSAN")
GTEST_OUTPUT = "--gtest_output="
# The leak checker's remark on a thread that was just ending; it says that its report may be wrong, and made none.
REMARK = re.compile(r"==\d+==Running thread \d+ was not suspended\. False leaks are possible\.\n?")
LIVE = set()  # (name, process) of runs that have not ended
STOPPING = threading.Event()  # set: no program begins any more
STARTING = threading.Lock()  # of LIVE and STOPPING


@dataclass(frozen=True)
class Program:
    name: str
    command: tuple
    folder: str
    limit: float  # seconds
    variables: tuple = ()  # (name, value)
    labels: frozenset = frozenset()
    serial: bool = False
    must_print: str = ""  # a pattern that replaces the exit status

    @property
    def has_cases(self):
        """Says whether it writes GoogleTest's report of its cases."""
        return any(word.startswith(GTEST_OUTPUT) or word == "--report" for word in self.command)

    def words(self, report, case=None):
        """The command that writes its report to a file, for one case or for all."""
        words = [f"{GTEST_OUTPUT}json:{report}" if word.startswith(GTEST_OUTPUT) else word for word in self.command]
        if "--report" in words:
            words[words.index("--report") + 1] = report
            return words + (["--only", case] if case else [])
        return words + ([f"--gtest_filter={case}"] if case else [])


@dataclass
class Run:
    program: Program
    case: str | None
    began: float
    ended: float = 0.0
    status: int = 0  # negative: the signal
    timed_out: bool = False
    output: str = ""
    report: str = ""  # the file with GoogleTest's outcomes
    sanitizer_reports: dict = field(default_factory=dict)  # file -> text

    @property
    def seconds(self):
        return self.ended - self.began

    @property
    def is_well(self):
        if self.program.must_print and not self.timed_out:
            return bool(re.search(self.program.must_print, self.output))
        return self.status == 0 and not self.timed_out


def programs_of(build, choice):
    """The programs that ctest would run in a build folder; choice: its arguments that choose."""
    said = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1", *choice], capture_output=True, text=True,
                          check=False)
    if said.returncode != 0:
        raise SystemExit(f"ctest cannot list the tests of {build}: {said.stderr.strip()}")
    return [program_of(entry) for entry in json.loads(said.stdout)["tests"]]


def program_of(entry):
    properties = {one["name"]: one["value"] for one in entry.get("properties", [])}
    unknown = set(properties) & {"SKIP_RETURN_CODE", "WILL_FAIL", "DEPENDS", "FAIL_REGULAR_EXPRESSION", "RESOURCE_LOCK"}
    if unknown or "command" not in entry:
        raise SystemExit(f"test {entry['name']}: {', '.join(sorted(unknown)) or 'its program is missing'}: "
                         f"scripts/suite/programs.py cannot run that")
    return Program(
        name=entry["name"], command=tuple(entry["command"]), folder=properties.get("WORKING_DIRECTORY", "."),
        limit=float(properties.get("TIMEOUT", CTEST_LIMIT)),
        variables=tuple(tuple(pair.split("=", 1)) for pair in properties.get("ENVIRONMENT", [])),
        labels=frozenset(properties.get("LABELS", [])), serial=bool(properties.get("RUN_SERIAL", False)),
        must_print="|".join(properties.get("PASS_REGULAR_EXPRESSION", [])))


def environment_of(program, reports):
    variables = os.environ | {"PYTHONFAULTHANDLER": "1"} | dict(program.variables)
    for sanitizer in SANITIZERS:
        given = variables.get(f"{sanitizer}_OPTIONS")
        variables[f"{sanitizer}_OPTIONS"] = ":".join(filter(None, [given, f"log_path={reports}/report"]))
    return variables


def run_program(program, results, case=None, say=print):
    """One run, whole or of one case. `results` is a folder for the files of this run alone."""
    shutil.rmtree(results, ignore_errors=True)
    reports = os.path.join(results, "sanitizers")
    os.makedirs(reports)
    report = os.path.join(results, "report.json")
    with open(os.path.join(results, "output"), "wb+") as output:
        run = Run(program, case, time.monotonic(), report=report)
        with start(program, program.words(report, case), environment_of(program, reports), output) as process:
            try:
                run.status = process.wait(program.limit)
            except subprocess.TimeoutExpired:
                run.timed_out = True
                said = os.fstat(output.fileno()).st_size
                try:
                    say(f"-- {program.name} hangs: {program.limit:.0f} s are over. Its threads:\n{stacks_of(process.pid)}")
                finally:
                    end_all(process)
                run.status = process.wait()
            finally:
                LIVE.discard((program.name, process))
        run.ended = time.monotonic()
        output.seek(0)
        text = output.read()
        if run.timed_out and text[said:]:  # what its end made it say is no crash
            say(f"-- {program.name}, when it was ended:\n{text[said:].decode(errors='replace')}")
            text = text[:said]
        run.output = text.decode(errors="replace")
    run.sanitizer_reports = sanitizer_reports(results)
    return run


def start(program, words, environment, output):
    with STARTING:
        if STOPPING.is_set():
            raise OSError("the run is being ended")
        process = subprocess.Popen(words, cwd=program.folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        LIVE.add((program.name, process))
    return process


def sanitizer_reports(results):
    """{file: text} of what sanitizers wrote below the folder of a run, until now."""
    found = {}
    folder = os.path.join(results, "sanitizers")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as stream:
            text = stream.read()
        if REMARK.sub("", text).strip() or not text:
            found[name] = text
    return found


def end_all(process):
    """Ends a program and all that it started. Interpreters print the stacks of their threads first, which no debugger sees."""
    pids = [process.pid, *descendants(process.pid)]
    interpreters = [pid for pid in pids if is_python(pid)]
    for pid in interpreters:
        send(pid, signal.SIGABRT)
    deadline = time.monotonic() + 2
    while any(map(is_python, interpreters)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in pids:
        send(pid, signal.SIGKILL)


def is_python(pid):
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")
    except OSError:  # it has ended, or is somebody else's
        return False


def send(pid, number):
    try:
        os.kill(pid, number)
    except OSError:  # it has ended, or belongs to somebody else
        pass
