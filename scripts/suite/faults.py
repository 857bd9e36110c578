# SPDX-License-Identifier: Apache-2.0
"""Faults that no second run excuses. A failed test that shows one of these is not run again.

Failures are recognised by their text, so the text has to say it: tests of bytes go through the functions named here, or
their failure says "wrong bytes". In doubt a failure is a fault: a fault that passes for noise would land."""

import re
import signal

FAULTS = (
    ("a sanitizer's report", re.compile(
        r"WARNING: ThreadSanitizer: |==\d+==\s*ERROR: |runtime error: |SUMMARY: \w+Sanitizer")),
    ("a crash", re.compile(
        r"\bsignal (?:4|6|7|8|11)\b|\bSIG(?:ILL|ABRT|BUS|FPE|SEGV)\b|[Ss]egmentation fault|\bAborted\b|core dumped|"
        r"terminate called|check failed: |has no value: |\b(?:ended|exited|status)\D{0,12}(?:132|134|135|136|139)\b")),
    ("wrong bytes", re.compile(
        r"wrong bytes?\b|\b[1-9]\d* wrong\b|memcmp|std::equal\b|ranges::equal|first(?:Wrong|Difference)\w*|wrongWords|"
        r"isFilledWith|\bholds\(|contents?(?:Of)?\(|std::byte|1-byte object|all_of\(|\bpattern\w*\(|wordAt|"
        r"\.bytes\b|tobytes|brought other words|did not arrive as they were sent", re.IGNORECASE)),
    ("a leak", re.compile(r"\bleak|Footprint|Holdings|descriptors? (?:are|is) left", re.IGNORECASE)),
)

# MUST() of tests/core/expect_ok.h ends a program by abort() after it printed its failure: an assertion, and no crash.
ASSERTED = re.compile(r"tests/core/expect_ok\.h:\d+: Failure")
ABORTED = re.compile(r"\bsignal 6\b|\bSIGABRT\b|\bAborted\b|core dumped|\b(?:ended|exited|status)\D{0,12}134\b")


def fault_in(text):
    """The name of the fault that a text shows, or "" for none."""
    if ASSERTED.search(text):
        text = ABORTED.sub("", text)
    return next((name for name, pattern in FAULTS if pattern.search(text)), "")


def fault_of(outcome, program, status):
    """Why a test that did not pass may not be noise, or ""."""
    is_assertion = status == -signal.SIGABRT and ASSERTED.search(outcome.text)
    if status < 0 and outcome.result != "hung" and not is_assertion:
        return "a crash"
    if outcome.result == "skipped":
        return "a test that skipped itself"
    if "fuzz" in program.labels:
        return "a fuzzer's finding"
    if program.labels & {"guest", "guest_long"}:
        return "a row of a guest"  # it would need a boot of its own
    return fault_in(outcome.text)
