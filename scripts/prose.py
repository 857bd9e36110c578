#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds sentences that hide who acts, or that use a word of place for time.

Usage: prose.py [--docs] [--headers] [--list] [ROOT]

--docs     README.md and docs/*.md; code, both fenced and `inline`, is left out.
--headers  the comments of *.h below peerlane/, explore/ and tools/.
           Without either option both are read.
--list     prints the patterns and ends.

Prints "path:line: pattern: text" for each finding, and ends with 1 when there is one, or when an exception of the list
below no longer occurs. It reads words, not grammar. So it is strict where it cannot tell: a relative clause after a comma
begins with "which", because the actors here are threads, peers and kernels. And it lets labels pass, which are no
sentences: a comment or table cell that begins with a small "what", the words after "Name: what ..." or in parentheses.
"""

import os
import re
import sys

# (path, a piece of the sentence as it stands there in one line, reason). Each has to be a finding, else it is an error.
EXCEPTIONS = []

PATTERNS = {
    "who": "a clause whose subject is 'who' or 'whoever': name the thread, peer or caller",
    "what": "a clause whose subject is 'what': name the thing",
    "beside the link": "say which link it is used in addition to",
    "behind": "'behind' for time or order: say 'after'",
    "by now": "say 'before' or 'already', and when",
}

# Words after which "who" begins no relative clause of a noun and no indirect question.
OPENERS = ("that and but or nor so because if while where when until unless before after since although though than as "
           "then also only even")
WHO_AFTER = set((OPENERS + " of to by with for from on at in into about against without between except is are was be "
                 "wakes wake stops stop serves leaves let lets").split())
WHAT_AFTER = set(OPENERS.split())
# After one of these in the same sentence "and who", "or what" goes on with an indirect question.
ASKING = re.compile(r"\b(which|what|who|how|why|whether|where|says?|said|knows?|tells?|told|shows?|explains?|decides?|asks?|"
                    r"sees?|learns?|names?)\b", re.IGNORECASE)
CONTINUES = {"and", "or", "nor"}
# Places in space, where "behind" is right: the memory behind a descriptor.
IN_SPACE = re.compile(r"behind (?:(?:a|an|the|its|each|one|that|this|every) )?(?:[\w-]+ )?"
                      r"(?:descriptors?|handles?|regions?|references?|interface|contract|pointers?|face|firewall|NAT)\b")
WORD = re.compile(r"[A-Za-z']+")


class Text:
    """One paragraph, table cell or comment as a line of words, and where each of its characters stands."""

    def __init__(self, title=False):
        self.characters = []
        self.lines = []
        self.title = title

    def add(self, piece, line):
        if self.characters:
            self.characters.append(" ")
            self.lines.append(line)
        self.characters += piece
        self.lines += [line] * len(piece)

    def __str__(self):
        return "".join(self.characters)


def without_marks(line):
    """Inline code becomes a noun of the same length; marks of emphasis and targets of links go."""
    line = re.sub(r"`[^`]*`", lambda code: "X" * len(code.group()), line)
    line = re.sub(r"\]\([^)]*\)", "]", line)
    return re.sub(r"\*+|^\s*>+|!\[|[\[\]]", "", line)


def texts_of_markdown(lines):
    texts, current, fenced = [], None, False
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            fenced, current = not fenced, None
            continue
        bullet = re.match(r"\s*(?:[-*]|\d+\.)\s+(.*)", line)
        if fenced or not line.strip() or line.lstrip().startswith("<!--"):
            current = None
        elif line.startswith("#"):
            texts.append(Text(title=True))
            texts[-1].add(without_marks(line.lstrip("# ")), number)
            current = None
        elif line.startswith("|"):
            header = number < len(lines) and re.match(r"\|[\s:|-]+$", lines[number])
            for cell in without_marks(line).strip().strip("|").split("|"):
                texts.append(Text(title=bool(header)))
                texts[-1].add(cell.strip(), number)
            current = None
        else:
            if bullet or current is None:
                current = Text()
                texts.append(current)
            current.add(without_marks(bullet.group(1) if bullet else line).strip(), number)
    return texts


def texts_of_header(lines):
    """Comments alone; those on consecutive lines are one text."""
    texts, current, block = [], None, False
    for number, line in enumerate(lines, 1):
        bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', line) if not block else line
        if block:
            said, code = bare, False
        else:
            mark = re.search(r"//|/\*", bare)
            if not mark:
                current = None
                continue
            said, code = bare[mark.start():], bool(bare[:mark.start()].strip())
            block = said.startswith("/*")
        if block and "*/" in said:
            said, block = said[:said.index("*/")], False
        said = re.sub(r"^\s*(?:///?<?|/\*+|\*+)\s?", "", said).strip()
        if not said or said.startswith("SPDX"):
            current = None
            continue
        bullet = re.match(r"(?:[-*]|\d+\.)\s+(.*)", said)
        if current is None or code or bullet:
            current = Text()
            texts.append(current)
        current.add(without_marks(bullet.group(1) if bullet else said), number)
    return texts


def sentence_around(text, at):
    begin = max((mark.end() for mark in re.finditer(r"[.!?]\s", text[:at])), default=0)
    end = re.search(r"[.!?](?:\s|$)", text[at:])
    return begin, (at + end.end() if end else len(text))


def is_subject(text, at, word):
    """Whether the who or what at this place is the subject of a clause that stands for somebody or something."""
    begin, end = sentence_around(text, at)
    before = text[begin:at].rstrip(" \"'")
    if text[begin:end].rstrip().endswith("?"):
        return False
    label = word.islower()
    if not WORD.search(before):
        return bool(WORD.search(text[at + len(word):end])) and not (label and begin == 0)
    asked = ASKING.search(before)
    if before[-1] in ",;:()":
        return not (asked and before[-1] in ",:(") and before[-1] != "(" and (word.lower() == "who" or before[-1] != ":")
    last = WORD.findall(before)[-1].lower()
    if not before.lower().endswith(last) or last not in (WHAT_AFTER if word.lower() == "what" else WHO_AFTER):
        return False
    if last == "on" and before.lower().endswith("depends on"):
        return False
    return not (asked and last in CONTINUES)


def findings(text):
    """(pattern, place) of each finding in one text."""
    line = str(text)
    for match in re.finditer(r"\bwhoever\b", line, re.IGNORECASE):
        yield "who", match.start()
    if not text.title:
        for match in re.finditer(r"\b(who|what)\b", line, re.IGNORECASE):
            if is_subject(line, match.start(), match.group()):
                yield match.group().lower(), match.start()
    for match in re.finditer(r"\bbeside the (?:\w+ )?links?\b", line, re.IGNORECASE):
        yield "beside the link", match.start()
    for match in re.finditer(r"\bbehind\b", line, re.IGNORECASE):
        if not IN_SPACE.match(line[match.start():]):
            yield "behind", match.start()
    for match in re.finditer(r"\bby now\b", line, re.IGNORECASE):
        yield "by now", match.start()


def documents(root):
    folder = os.path.join(root, "docs")
    names = ["docs/" + name for name in sorted(os.listdir(folder))] if os.path.isdir(folder) else []
    return [name for name in ["README.md"] + names if name.endswith(".md") and os.path.isfile(os.path.join(root, name))]


def headers(root):
    found = []
    for top in ("peerlane", "explore", "tools"):
        for folder, _, names in os.walk(os.path.join(root, top)):
            found += [os.path.relpath(os.path.join(folder, name), root) for name in names if name.endswith(".h")]
    return sorted(found)


def check(root, paths, exceptions):
    """The lines to print, one for each thing that is wrong."""
    wrong, used = [], set()
    for path in paths:
        with open(os.path.join(root, path), encoding="utf-8") as stream:
            lines = stream.read().splitlines()
        found = []
        for text in texts_of_markdown(lines) if path.endswith(".md") else texts_of_header(lines):
            found += [(text.lines[at], pattern, str(text)[max(0, at - 40):at + 60].strip()) for pattern, at in findings(text)]
        for number, pattern, excerpt in sorted(found):
            excused = [e for e in exceptions if e[0] == path and e[1] in lines[number - 1]]
            used.update(excused)
            if not excused:
                wrong.append(f"{path}:{number}: {pattern}: {excerpt}")
    for exception in exceptions:
        if exception not in used and exception[0] in paths:
            wrong.append(f"{exception[0]}:1: exception: '{exception[1]}' is no finding there any more; take it off the list")
        if not os.path.isfile(os.path.join(root, exception[0])):
            wrong.append(f"{exception[0]}:1: exception: there is no such file; take it off the list")
    return wrong


def main(arguments):
    if "--list" in arguments:
        for name, meaning in PATTERNS.items():
            print(f"{name:16} {meaning}")
        return 0
    chosen = {argument for argument in arguments if argument.startswith("--")} or {"--docs", "--headers"}
    if chosen - {"--docs", "--headers"}:
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    roots = [argument for argument in arguments if not argument.startswith("--")]
    root = roots[0] if roots else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    paths = (documents(root) if "--docs" in chosen else []) + (headers(root) if "--headers" in chosen else [])
    if not paths:
        print(f"nothing to read below {root}")
        return 1
    wrong = check(root, paths, EXCEPTIONS)
    for line in wrong:
        print(line)
    print(f"{len(paths)} files, {len(wrong)} sentences to rewrite")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
