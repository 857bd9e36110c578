#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lists comparisons with a clock in tests that a busy machine can miss. Usage: clocks.py [--list] [ROOT]

A test that bounds a time from above fails on a machine that is slow or busy, and says nothing of the code. So an assertion
of such a bound needs a reason in one line, in or directly above the statement:

    // clock: REASON

Found in *.cc, *.cu and *.h below tests/: EXPECT_ and ASSERT_ statements in which a time that has passed stands below a bound
(or a bound above it), and soon() with a limit of its own below 20 s. In *.py: assertLess and its kin on a clock.
Lower bounds are free: a busy machine only makes them truer. So is a moment at which a loop gives up, now() < LIMIT. --list prints the reasons as well. Ends with 1 where a
reason lacks, or where a line gives one and no comparison is there."""

import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
STATEMENT = re.compile(r"^[ \t]*(?:(?:if|while|for) \(.*\)\s*)?((?:EXPECT|ASSERT)_(LT|LE|GT|GE|TRUE|FALSE|NEAR)\(|self\.assert\w+\()",
                       re.MULTILINE)
REASON = re.compile(r"(?://|#) clock: (\S.*)")
NOW = re.compile(r"(?<!Holdings::)\bnow\(\)|\bmonotonic\(\)|perf_counter\(\)|\btime\.time\(\)")
# Names that hold a time that has passed, where the clock was read before.
PASSED = re.compile(r"\b(?:took|taken|elapsed|spent|duration|shortest|longest|delays?|used\w*|waited|\w*[nN]anos(?:econds)?|"
                    r"milliseconds|seconds)\b")
# A bound that says that it is a time, and one that may be.
TIME = re.compile(r"\b\d[\d']*(?:ns|us|ms|s|min)\b|\b(?:nano|micro|milli)?seconds[({]|\bminutes[({]|\bnoticedWithin\(")
NUMBER = re.compile(r"^[\d'.]+u?$|\bk[A-Z]\w*\b")
SOON = re.compile(r"\bsoon\(", re.MULTILINE)
SHORT_LIMIT = re.compile(r",\s*(?:std::chrono::)?(?:(\d+)(ms|s)|(milli)?seconds[({](\d+)[)}])\s*\)*$")


def closing(text, position):
    """Where the parenthesis closes that opens at position."""
    depth = 0
    for at in range(position, len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return len(text)


def arguments_of(text):
    """The arguments of a call, at commas outside of all brackets."""
    parts, depth, begin = [], 0, 0
    for at, char in enumerate(text):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            parts.append(text[begin:at].strip())
            begin = at + 1
    return [*parts, text[begin:].strip()]


def is_passed_time(text):
    if NOW.search(text):
        return "+" not in text  # now() + limit is a time to come
    return bool(PASSED.search(text))


def without_bodies(text):
    """text without what stands in braces after a parameter list: the bodies of lambdas have statements of their own."""
    out, depth = [], 0
    for at, char in enumerate(text):
        depth += char == "{" and (depth or bool(re.search(r"[\])]\s*(?:mutable\s*)?$", text[:at])))
        if not depth:
            out.append(char)
        depth -= char == "}" and depth > 0
    return "".join(out)


def bounds_from_above(macro, arguments):
    if macro in ("LT", "LE"):
        since = NOW.search(arguments[0]) and re.search(r"\)\s*-", arguments[0])
        return bool(since or TIME.search(arguments[1]) or is_passed_time(arguments[0]) and NUMBER.search(arguments[1]))
    if macro in ("GT", "GE"):
        return is_passed_time(arguments[1]) and not NOW.search(arguments[0])
    if macro == "NEAR":
        return any(map(is_passed_time, arguments))
    return macro in ("TRUE", "FALSE") and bool(NOW.search(arguments[0])) and bool(re.search(r" [<>]=? ", arguments[0]))


def short_soon(statement):
    call = SOON.search(statement)
    if not call:
        return False
    limit = SHORT_LIMIT.search(statement[call.end():closing(statement, call.end() - 1)])
    if not limit:
        return False
    value, unit = (int(limit[1]), limit[2]) if limit[1] else (int(limit[4]), "ms" if limit[3] else "s")
    return unit == "ms" or value < 20


def comparisons(path, text):
    """[(line, statement, reason or "")]"""
    found = []
    lines = text.split("\n")
    for match in STATEMENT.finditer(text):
        opening = match.end() - 1
        end = closing(text, opening)
        statement = text[match.start(1):end + 1]
        arguments = arguments_of(without_bodies(text[opening + 1:end]))
        if path.endswith(".py"):
            kind = {"assertLess": "LT", "assertLessEqual": "LE", "assertGreater": "GT", "assertGreaterEqual": "GE"}.get(
                match[1][5:-1])
        else:
            kind = match[2]
        if not kind or not (len(arguments) > (kind not in ("TRUE", "FALSE")) and bounds_from_above(kind, arguments)
                            or short_soon(without_bodies(statement))):
            continue
        first = text.count("\n", 0, match.start(1))
        last = text.count("\n", 0, end)
        reason = REASON.search("\n".join(lines[max(first - 1, 0):last + 1]))
        found.append((first + 1, " ".join(statement.split()), reason[1] if reason else ""))
    return found


def read(root):
    """({path: comparisons}, {path: how many reasons})"""
    found, reasons = {}, {}
    for folder, _, names in os.walk(os.path.join(root, "tests")):
        for name in sorted(names):
            if name.endswith((".cc", ".cu", ".h", ".py")) and name != "clocks_test.py":
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as stream:
                    text = stream.read()
                inside = os.path.relpath(path, root)
                found[inside] = comparisons(path, text)
                reasons[inside] = len(REASON.findall(text))
    return found, reasons


def main():
    words = [word for word in sys.argv[1:] if word != "--list"]
    found, reasons = read(words[0] if words else ROOT)
    problems = 0
    for path, rows in sorted(found.items()):
        for line, statement, reason in rows:
            if not reason:
                problems += 1
                print(f"{path}:{line}: [clock] a busy machine can miss this bound; remove it, or say above it '// clock: REASON': "
                      f"{statement}")
            elif "--list" in sys.argv:
                print(f"{path}:{line}: {reason}: {statement}")
        if reasons[path] > len(rows):
            problems += 1
            print(f"{path}:1: [clock] it gives {reasons[path]} reasons for {len(rows)} comparisons with a clock")
    count = sum(map(len, found.values()))
    print(f"{count} comparisons with a clock in tests, {count - sum(bool(r) for rows in found.values() for _, _, r in rows)} "
          f"without a reason")
    return 1 if problems or not found else 0


if __name__ == "__main__":
    sys.exit(main())
