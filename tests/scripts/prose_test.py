#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each pattern of scripts/prose.py is found in a sentence that has it, and in no sentence that has not."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "scripts", "prose.py")
spec = importlib.util.spec_from_file_location("prose", SCRIPT)
prose = importlib.util.module_from_spec(spec)
spec.loader.exec_module(prose)

WRONG = {
    "who": [
        "Who waits in vain asks over the control connection.",
        "One thread turns at a time; who finds the flag taken goes on.",
        "The thread polls, and whoever stores the word wakes it.",
        "The lock is left to who holds it.",
        "A word has one writer, who stores its total.",
    ],
    "what": [
        "What cannot go straight is staged.",
        "The lane is refused, because what the peer stored is no number.",
        "The peer confirms; what it kept is freed.",
        "**What is left** is the launch.",
    ],
    "beside the link": ["It is memory of GPUs, beside the link.", "Memory of GPUs goes beside the host link."],
    "behind": ["The word is stored behind the copies.", "Posts behind them wait."],
    "by now": ["The region is imported by now."],
}

RIGHT = [
    "A thread who waits polls.",  # a relative clause of a noun
    "The route says who copies, and what it costs.",
    "A protocol never knows who runs it.",
    "Who polls?",
    "It depends on who asks.",
    "It copies what the peer has announced.",
    "The file behind a descriptor stays open.",
    "The memory behind the region is mapped.",
    "The name `who waits polls` is code, and so is `behind`.",
    "Nowhere is it stored by nowhere.",
    "| what | measured |\n|---|---|\n| what a slot holds | 8 bytes |",
    "## What was measured",
    "```\nWho waits polls, behind the link, by now.\n```",
]


def run(root, *options):
    done = subprocess.run([sys.executable, SCRIPT, *options, root], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def tree(root, files):
    for name, text in files.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text + "\n")


class Prose(unittest.TestCase):
    def found(self, text, name="docs/page.md", exceptions=()):
        with tempfile.TemporaryDirectory() as root:
            tree(root, {name: text})
            return prose.check(root, [name], list(exceptions))

    def test_each_pattern_has_sentences_here(self):
        self.assertEqual(sorted(WRONG), sorted(prose.PATTERNS))

    def test_each_pattern_is_found_once(self):
        for pattern, sentences in WRONG.items():
            for sentence in sentences:
                with self.subTest(sentence=sentence):
                    lines = self.found("First line.\n\n" + sentence)
                    self.assertEqual(len(lines), 1, lines)
                    self.assertTrue(lines[0].startswith(f"docs/page.md:3: {pattern}: "), lines[0])

    def test_in_comments_too(self):
        for pattern, sentences in WRONG.items():
            for sentence in sentences:
                with self.subTest(sentence=sentence):
                    lines = self.found(f"int a;\n\n// {sentence}\nint b;", "peerlane/core/page.h")
                    self.assertEqual(len(lines), 1, lines)
                    self.assertTrue(lines[0].startswith(f"peerlane/core/page.h:3: {pattern}: "), lines[0])

    def test_allowed_sentences_are_not_found(self):
        for text in RIGHT:
            with self.subTest(text=text):
                self.assertEqual(self.found(text), [])

    def test_sentences_go_over_lines(self):
        self.assertEqual([line.split(": ")[0] for line in self.found("The word is stored.\nEvery\nread waits. What is\nleft waits.")],
                         ["docs/page.md:3"])
        self.assertEqual([line.split(": ")[0] for line in self.found("// A flag; who\n// finds it goes on.\n/* By\n * now. */", "tools/a.h")],
                         ["tools/a.h:1", "tools/a.h:3"])

    def test_code_of_headers_is_not_read(self):
        self.assertEqual(self.found('const char* who = "who waits, by now";\nint behind = 1;  // what it is\n', "tools/a.h"), [])

    def test_exceptions(self):
        text = "The word is stored behind the copies."
        self.assertEqual(self.found(text, exceptions=[("docs/page.md", "behind the copies", "a test")]), [])

    def test_a_stale_exception_is_an_error(self):
        for stale in (("docs/page.md", "behind the copies", "a test"), ("docs/gone.md", "behind", "a test")):
            lines = self.found("The word is stored after the copies.", exceptions=[stale])
            self.assertEqual(len(lines), 1, lines)
            self.assertTrue(lines[0].startswith(f"{stale[0]}:1: exception: "), lines[0])

    def test_every_exception_has_a_reason(self):
        for exception in prose.EXCEPTIONS:
            self.assertEqual(len(exception), 3, exception)
            self.assertTrue(all(exception), exception)

    def test_documents_and_headers_are_chosen(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(run(root)[0], 1)
            tree(root, {"README.md": "Good.", "docs/page.md": "What is left waits.", "peerlane/a.h": "// By now.",
                        "explore/b.h": "// By now.", "tools/c.h": "// By now.", "bench/d.h": "// By now."})
            self.assertEqual(run(root, "--docs"), (1, ["docs/page.md:1: what: What is left waits.", "2 files, 1 sentences to rewrite"]))
            self.assertEqual([line.split(":")[0] for line in run(root, "--headers")[1][:-1]],
                             ["explore/b.h", "peerlane/a.h", "tools/c.h"])
            self.assertEqual(run(root)[1][-1], "5 files, 4 sentences to rewrite")
            self.assertEqual(run(root, "--nothing")[0], 2)


if __name__ == "__main__":
    unittest.main()
