# SPDX-License-Identifier: Apache-2.0
"""Faults that no second run excuses. A failed test that shows one of these is not run again.

Failures are recognised by their text, so a test of bytes compares by one of the functions or names that stand here, or its
failure says "wrong bytes". In doubt a failure is a fault: a fault that passes for noise would land."""

import re
import signal

FAULTS = (
    ("a sanitizer's report", re.compile(
        r"WARNING: ThreadSanitizer: |==\d+==\s*ERROR: |runtime error: |SUMMARY: \w+Sanitizer")),
    ("a crash", re.compile(
        r"\bsignal (?:4|6|7|8|11)\b|\bSIG(?:ILL|ABRT|BUS|FPE|SEGV)\b|[Ss]egmentation fault|\bAborted\b|core dumped|"
        r"terminate called|check failed: |has no value: |\b(?:ended|exited|status)\D{0,24}(?:132|134|135|136|139)\b|"
        r"Which is: (?:4|6|7|8|11|132|134|135|136|139)\b|(?<!\d)-(?:4|6|7|8|11) != 0|double free|free\(\): |malloc\(\): |"
        r"stack smashing|pure virtual")),
    ("wrong bytes", re.compile(
        r"wrong bytes?\b|\b[1-9]\d* wrong\b|memcmp|std::equal\b|ranges::equal|first(?:Wrong|Difference)\w*|wrongWords|"
        r"isFilledWith|\bholds\(|contents?(?:Of)?\(|std::byte|1-byte object|all_of\(|\bpattern\w*\(|wordAt|"
        r"\.bytes\b|tobytes|brought other words|did not arrive as they were sent|"
        r"\b(?:to_?|from_?|got|received|target_?|opened(?:\.plain)?|data)\b(?:\[\w+\])?\s*(?:[=!]=|\n\s+Which is)", re.IGNORECASE)),
    ("a leak", re.compile(r"\bleak|Footprint|Holdings|descriptors? (?:are|is) left", re.IGNORECASE)),
)

# MUST() of tests/core/expect_ok.h ends a program by abort() after it printed its failure: an assertion, and no crash.
ASSERTED = re.compile(r"tests/core/expect_ok\.h:\d+: Failure")
ABORTED = re.compile(r"\bsignal 6\b|\bSIGABRT\b|\bAborted\b|core dumped|\b(?:ended|exited|status)\D{0,12}134\b")
# A status code that GoogleTest prints as it prints a byte.
STATUS = re.compile(r"\n\s+[^\n]+\n\s+Which is: 1-byte object <\w\w>\n\s+Code::k\w+\n\s+Which is: 1-byte object <\w\w>|"
                    r"\n\s+Code::k\w+\n\s+Which is: 1-byte object <\w\w>\n\s+[^\n]+\n\s+Which is: 1-byte object <\w\w>")


def fault_in(text):
    """The name of the fault that a text shows, or "" for none."""
    text = STATUS.sub("", text)
    if ASSERTED.search(text):
        text = ABORTED.sub("", text)
    return next((name for name, pattern in FAULTS if pattern.search(text)), "")


def fault_of(outcome, run):
    """Why a test that did not pass in a run may not be noise, or ""."""
    is_assertion = run.status == -signal.SIGABRT and ASSERTED.search(run.output)
    if run.status < 0 and not run.timed_out and not is_assertion:
        return "a crash"
    if outcome.result == "skipped":
        return "a test that skipped itself"
    if "fuzz" in run.program.labels and not run.timed_out:
        return "a fuzzer's finding"
    if run.program.labels & {"guest", "guest_long"}:
        return "a row of a guest"  # it would need a boot of its own
    return fault_in(outcome.text)


def reports_of(run):
    """[(what it is, text)] of the sanitizers' reports of a run: in its files, and of processes that set a log_path of their
    own on its output."""
    found = [(f"a sanitizer's report, {name}", text) for name, text in run.sanitizer_reports.items()]
    if not found and FAULTS[0][1].search(run.output):
        found.append((FAULTS[0][0], run.output[-20000:]))
    return found
