#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the sizes of the tree: stems of a folder, lines of a class, pure virtuals of a contract, lines of a function.
Usage: shape.py [--table] [ROOT]; --table prints the largest of each instead.

Reads text only (no compiler), prints "path:line: [limit] what is too large", and ends with 1 when anything is.
A class is its definition and all its member functions in all files, in lines that hold code: comments cost nothing.
A function is all the lines from its first word to its last brace, because it has to fit on a screen; what is defined
within it belongs to it. EXCEPTIONS names what may be larger, by how much, and why; one that nothing needs is a violation, too.
"""

import ast
import os
import re
import sys
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate

from check_layers import MOST_STEMS, SIZED_FOLDERS, SOURCE, stem_of, walk

LIMITS = {"folder": MOST_STEMS, "class": 400, "contract": 8, "function": 60}
UNITS = {"folder": "stems", "class": "lines of code", "contract": "pure virtuals", "function": "lines"}
SOURCE_FOLDERS = ("peerlane", "tools", "explore", "bench", "examples")
SCRIPT_FOLDERS = ("scripts", "bench")

# (limit, name): (its size today, reason). The size is a ceiling that follows the thing down: one that grows is refused,
# and one that shrank asks for its new size here. So what is too large can only become smaller.
EXCEPTIONS = {
    ("function", "configTable"): (335, "one row for each environment variable, and no decision"),
    ("class", "Progress"): (542, "turns, naps and sleeping waiters are ordered by the same few words"),
    ("contract", "DeviceExecutor"): (33, "one implementation, ten down-casts: concrete classes by concern shall replace it"),
    ("class", "StreamExecutor"): (448, "implements DeviceExecutor"),
    ("function", "StreamStepList::lower"): (89, "recognises the kernels of messages one after another"),
    ("class", "DeviceLane"): (832, "all operations of a lane on a stream, each with the same ending"),
    ("function", "DeviceTransfer::advance"): (65, "its ending is that of every post on a stream"),
    ("class", "PortCore"): (1234, "tables of a service, bootstrap, and the turn of the proxy"),
    ("class", "CommunicatorCore"): (838, "ranks, bootstrap, posting, and a part of staging"),
    ("class", "LaneReceiver"): (521, "matching, copying, and a ring of chunks"),
    ("class", "StagedTransfer"): (510, "a pipeline of chunks for put and get"),
    ("class", "StagedLane"): (491, "a pipeline of chunks for messages"),
}

LITERALS = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^()\\\s]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|'
                      r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", re.MULTILINE)
TOKEN = re.compile(r"[{}();]|\b(?:public|private|protected)\s*:(?!:)")
BRACE = re.compile(r"[{}]")
PURE = re.compile(r"\bvirtual\b.*=\s*0\s*$", re.DOTALL)
NAMESPACE = re.compile(r'(?:inline\s+)?namespace\b\s*([\w:]*)$|extern\s*""$')
# What takes arguments without being a function's name: attributes, and macros that annotate.
ARGUMENTS = r"\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
ANNOTATION = re.compile(r"\[\[[^\]]*\]\]|"
                        r"\b(?:alignas|decltype|explicit|noexcept|requires|__\w+__|[A-Z][A-Z0-9_]+)" + ARGUMENTS)
CLASS_HEAD = re.compile(r"(?:typedef\s+|static\s+)*(?:class|struct|union)\s+(?:__\w+__\s+)?((?:\w+::)*\w+)\s*"
                        r"(?:\bfinal\s*)?(?::(?!:).*)?$", re.DOTALL)
OPENS_TEMPLATE = re.compile(r"(?:\btemplate\s*|(?<!\boperator)(?<=\w))\Z")
OPERATOR = r"operator\s*(?:\(\s*\)|\[\s*\]|\"\"\s*\w+|[^\s\w(]+|[\w:]+(?:\s*[*&]+)?)"
NAME = re.compile(r"(?:\w+::)*(?:" + OPERATOR + r"|~?\w+)$")


@dataclass
class Function:
    names: tuple  # with the classes before it, as written
    scope: tuple  # the namespaces and classes around it
    path: str
    line: int
    lines: int
    code: int = 0  # lines that hold any


@dataclass
class Definition:
    """The braces of one class."""
    names: tuple  # with all namespaces and classes
    path: str
    line: int
    begin: int
    code: int = 0  # lines that hold any
    pure: int = 0


@dataclass
class Class:
    name: str
    path: str
    line: int
    lines: int = 0
    functions: int = 0
    pure: int = 0
    files: set = field(default_factory=set)


def blank(match):
    """As many lines as there were, and nothing that looks like code."""
    text = match.group()
    kept = '""' if text[0] in "\"R" else "0" if text[0] == "'" else ""
    return kept + "\n" * text.count("\n")


def without_templates(text):
    """text without "template <...>" and what stands in other <>, except those of operators."""
    out, depth = [], 0
    for position, char in enumerate(text):
        if char == "<" and (depth or OPENS_TEMPLATE.search(text, 0, position)):
            depth += 1
        elif char == ">" and depth and text[position - 1] != "-":
            depth -= 1
        elif not depth:
            out.append(char)
    return re.sub(r"\btemplate\b", " ", "".join(out))


def parameters_of(head):
    """(start, end) of the parameter list in a head without templates; None where there is none."""
    called = re.search(r"operator\s*\(\s*\)", head)
    start = head.find("(", called.end() if called else 0)
    depth = 0
    for position in range(max(start, 0), len(head) if start >= 0 else 0):
        depth += {"(": 1, ")": -1}.get(head[position], 0)
        if depth == 0:
            return start, position
    return None


def function_name(head):
    """The parts of the name of the function whose body comes after head; None where it is something else's brace."""
    parameters = parameters_of(head)
    if not parameters:
        return None
    start, end = parameters
    if re.search(r"(?<!:):(?!:)", head[end:]) and re.search(r"\w$", head):
        return None  # in a constructor: the first value of a member
    name = NAME.search(re.sub(r"\s*::\s*", "::", head[:start].rstrip()))
    if not name or "=" in head[:start].replace(name.group(), "") or head.startswith("enum "):
        return None
    return tuple(name.group().split("::"))


class Reader:
    """Finds the namespaces, classes and functions of one file."""

    def __init__(self, path, text):
        self.path = path
        self.text = DIRECTIVE.sub(blank, LITERALS.sub(blank, text))
        self.breaks = [m.start() for m in re.finditer("\n", self.text)]
        self.code_before = [0, *accumulate(bool(line.strip()) for line in self.text.split("\n"))]  # each line
        self.scopes = []  # (names, the class's definition or None)
        self.namespaces = set()
        self.definitions = []
        self.functions = []

    def line_of(self, position):
        return bisect_right(self.breaks, position - 1) + 1

    def code_of(self, begin, end):
        return self.code_before[self.line_of(end)] - self.code_before[self.line_of(begin) - 1]

    def names(self):
        return tuple(name for names, _ in self.scopes for name in names)

    def closing(self, position):
        """Where the brace closes that opens at position."""
        depth = 0
        for match in BRACE.finditer(self.text, position):
            depth += 1 if match.group() == "{" else -1
            if depth == 0:
                return match.start()
        raise ValueError(f"{self.path}:{self.line_of(position)}: this brace is not closed")

    def read(self):
        position = head = parens = 0
        while match := TOKEN.search(self.text, position):
            token, at, position = match.group(), match.start(), match.end()
            if token == "(":
                parens += 1
            elif token == ")":
                parens -= 1
            elif parens:  # a default argument's braces
                position = self.closing(at) + 1 if token == "{" else position
            elif token == "{":
                position, goes_on = self.open(head, at)
                head = head if goes_on else position
            elif token == "}":
                self.close(at)
                head = position
            else:  # the end of a declaration, or public:
                self.declare(self.text[head:at])
                head = position
        if self.scopes:
            raise ValueError(f"{self.path}: '{self.names()[-1]}' is not closed")
        return self

    def declare(self, text):
        if self.scopes and self.scopes[-1][1] and PURE.search(text):
            self.scopes[-1][1].pure += 1

    def open(self, head, brace):
        """Reads what begins at brace; returns where to go on, and whether the head goes on there, too."""
        code = self.text[head:brace].strip()
        begin = self.text.find(code, head)
        if named := NAMESPACE.match(code):
            self.open_namespace(named)
            return brace + 1, False
        plain = without_templates(ANNOTATION.sub(" ", code)).strip()
        if named := CLASS_HEAD.match(plain):
            names = tuple(named.group(1).split("::"))
            definition = Definition(self.names() + names, self.path, self.line_of(begin), begin)
            self.definitions.append(definition)
            self.scopes.append((names, definition))
            return brace + 1, False
        end = self.closing(brace)
        if plain.startswith("catch") and self.functions:  # of a function whose body is "try {...}"
            self.functions[-1].lines = self.line_of(end) - self.functions[-1].line + 1
            self.functions[-1].code += self.code_of(begin, end)
            return end + 1, False
        name = function_name(plain)
        if not name:
            return end + 1, True  # a value, or a member's first value: more of the head may follow
        self.functions.append(Function(name, self.names(), self.path, self.line_of(begin),
                                       self.line_of(end) - self.line_of(begin) + 1, self.code_of(begin, end)))
        return end + 1, False

    def open_namespace(self, named):
        if named.group(1) is None:  # extern "C"
            names = ()
        elif named.group(1):
            names = tuple(named.group(1).split("::"))
        else:
            names = (f"({self.path})",)
        self.scopes.append((names, None))
        self.namespaces.add(self.names())

    def close(self, position):
        if not self.scopes:
            raise ValueError(f"{self.path}:{self.line_of(position)}: this brace closes nothing")
        _, definition = self.scopes.pop()
        if definition:
            definition.code = self.code_of(definition.begin, position)


class Tree:
    """All of it, with each function at its class."""

    def __init__(self, root):
        self.root = root
        self.files = [f for f in walk(root) if f.split("/")[0] in SOURCE_FOLDERS + SCRIPT_FOLDERS]
        self.namespaces = set()
        self.classes = {}  # names -> Class
        self.functions = []  # (name, path, line, lines)
        members = []
        for path in self.files:
            if path.endswith(SOURCE) and path.split("/")[0] in SOURCE_FOLDERS:
                found = Reader(path, self.text(path)).read()
                self.namespaces |= found.namespaces
                members += found.functions
                for definition in found.definitions:
                    self.add(definition)
            elif path.endswith((".py", ".sh")):
                self.functions += script_functions(path, self.text(path))
        for function in members:
            self.place(function)

    def text(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8") as stream:
            return stream.read()

    def name_of(self, names):
        """Without the namespaces."""
        inside = next(n for n in range(len(names), -1, -1) if n == 0 or names[:n] in self.namespaces)
        return "::".join(names[inside:])

    def add(self, definition):
        owner = self.classes.setdefault(definition.names, Class(self.name_of(definition.names), definition.path,
                                                                definition.line))
        owner.lines += definition.code
        owner.pure += definition.pure
        owner.files.add(definition.path)

    def place(self, function):
        """Looks for the class as the compiler does: from the inside out, in unnamed namespaces of the file as well."""
        full = function.scope + function.names
        if function.scope in self.classes:
            self.classes[function.scope].functions += 1
        else:
            scopes = [function.scope[:n] for n in range(len(function.scope), -1, -1)]
            unnamed = (f"({function.path})",)
            owners = [s + u + function.names[:-1] for s in scopes for u in ((), unnamed)]
            full = next((owner for owner in owners if owner in self.classes), None)
            if full:
                owner = self.classes[full]
                owner.lines += function.code
                owner.functions += 1
                owner.files.add(function.path)
                full += function.names[-1:]
        self.functions.append((self.name_of(full or function.scope + function.names), function.path, function.line,
                               function.lines))

    def folders(self):
        stems = defaultdict(set)
        for path in self.files:
            if path.endswith(SOURCE) and path.split("/")[0] in SIZED_FOLDERS:
                stems[os.path.dirname(path)].add(stem_of(path))
        return [(folder, f"{folder}/", 1, len(held)) for folder, held in stems.items()]

    def measured(self):
        """{limit: [(name, path, line, size), ...]}, the largest first."""
        classes = self.classes.values()
        sizes = {"folder": self.folders(),
                 "class": [(c.name, c.path, c.line, c.lines) for c in classes],
                 "contract": [(c.name, c.path, c.line, c.pure) for c in classes if c.pure],
                 "function": self.functions}
        return {limit: sorted(found, key=lambda one: (-one[3], one[0], one[1])) for limit, found in sizes.items()}


def script_functions(path, text):
    if path.endswith(".py"):
        nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
        return [(n.name, path, n.lineno, n.end_lineno - n.lineno + 1) for n in nodes]
    found = re.finditer(r"^([\w-]+)\(\) \{.*?(?:^\}|\}$)", text, re.MULTILINE | re.DOTALL)
    return [(m.group(1), path, text.count("\n", 0, m.start()) + 1, m.group().count("\n") + 1) for m in found]


def violations(measured, exceptions):
    """What is above a limit or its own ceiling, and exceptions that are larger than needed."""
    problems = []
    needed = set()
    for limit, found in measured.items():
        for name, path, line, size in found:
            if size <= LIMITS[limit]:
                continue
            needed.add((limit, name))
            accepted, _ = exceptions.get((limit, name), (LIMITS[limit], None))
            if size > accepted:
                problems.append(f"{path}:{line}: [{limit}] {name} has {size} {UNITS[limit]}; accepted are {accepted}")
            elif size < accepted:
                problems.append(f"scripts/shape.py:1: [{limit}] {name} shrank from {accepted} {UNITS[limit]} to {size}; "
                                f"write {size} into its exception")
    for limit, name in sorted(set(exceptions) - needed):
        problems.append(f"scripts/shape.py:1: [{limit}] {name} is listed as an exception and is not above "
                        f"{LIMITS[limit]} {UNITS[limit]}; take it off the list")
    return problems


def print_table(tree, measured):
    def heading(text, count, limit):
        above = sum(size > LIMITS[limit] for *_, size in measured[limit])
        print(f"\n{text} ({count} in all, {above} above {LIMITS[limit]} {UNITS[limit]})")

    heading("largest folders", len(measured["folder"]), "folder")
    for name, _, _, size in measured["folder"][:10]:
        print(f"{size:6} stems  {name}")
    heading("largest classes", len(measured["class"]), "class")
    by_place = {(c.path, c.line): c for c in tree.classes.values()}
    for name, path, line, size in measured["class"][:10]:
        one = by_place[path, line]
        print(f"{size:6} lines of code {one.functions:4} functions {len(one.files):3} files  {name}  ({path})")
    heading("contracts", len(measured["contract"]), "contract")
    for name, path, _, size in measured["contract"]:
        print(f"{size:6} pure virtuals  {name}  ({path})")
    heading("longest functions", len(measured["function"]), "function")
    for name, path, line, size in measured["function"][:10]:
        print(f"{size:6} lines  {name}  ({path}:{line})")


def main():
    arguments = [a for a in sys.argv[1:] if a != "--table"]
    root = arguments[0] if arguments else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    tree = Tree(root)
    measured = tree.measured()
    if "--table" in sys.argv[1:]:
        print_table(tree, measured)
        return 0
    problems = violations(measured, EXCEPTIONS)
    for problem in problems:
        print(problem)
    counts = ", ".join(f"{len(found)} {limit}{'es' if limit == 'class' else 's'}" for limit, found in measured.items())
    print(f"{counts}; {len(EXCEPTIONS)} exceptions, {len(problems)} violations")
    return 1 if problems or not tree.functions else 0


if __name__ == "__main__":
    sys.exit(main())
