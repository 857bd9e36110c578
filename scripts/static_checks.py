#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that need a compiler but no program. Usage: static_checks.py tidy|headers BUILD_FOLDER

tidy     clang-tidy, with the analysis of locks (peerlane/core/mutex.h), warnings as errors, over every C++ source
         in BUILD_FOLDER/compile_commands.json.
headers  each header without a source of the same name compiles alone. (One with a source does: the source
         includes it first, which check_layers.py holds, and the build compiled the source.)

What passed is remembered by the content of the file, of all our headers it reaches, of the flags and of the
configuration, so a second run looks at changes only. The memory is in $PEERLANE_CHECKS (default: the user's cache
folder, peerlane-checks) and holds no path of a tree, so that one clone need not repeat what another has done; what
was not needed for a month is forgotten.

clang-tidy spends most of its time in the standard library's headers. So neighbouring files are checked
as one translation unit: what several of them call by one name is renamed there, and those that do not go with
the others even so are set aside. A unit acquits files but convicts none: whatever it points at is checked alone,
and only that is reported.
"""

import bisect
import collections
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
FOLDERS = ("peerlane", "tools", "bench", "examples", "tests", "cmake")
# What a file has for itself: functions that each program has once, and what lines declare in unnamed namespaces.
ENTRIES = ("main", "LLVMFuzzerTestOneInput")
DECLARED = re.compile(r"^(?:(?:class|struct|union|enum class|enum) (\w+)|using (\w+) =|"
                      r"(?!using |namespace )[A-Za-z][^(={;\n]*\s[*&]?(\w+)(?:\(| =|\{|;|\[))", re.MULTILINE)
CLASH = re.compile(r"(?:(?:reference|call) to|redefinition of|conflicting types for) '(\w+)'")
BATCH = 24
CLANG = "clang++-16"


class Contents:
    """Our own headers reached from a file, and the hash over all of them."""

    def __init__(self, generated):
        self.roots = [ROOT, generated]
        self.memory = {}

    def includes(self, path):
        if path not in self.memory:
            with open(path, "rb") as stream:
                text = stream.read()
            found = []
            for name in INCLUDE.findall(text):
                candidates = (os.path.join(root, name.decode()) for root in self.roots)
                found += [c for c in candidates if os.path.exists(c)][:1]
            self.memory[path] = (hashlib.sha256(text).digest(), found)
        return self.memory[path]

    def hash(self, path, *context):
        seen, queue = set(), [path]
        while queue:
            current = queue.pop()
            if current not in seen:
                seen.add(current)
                queue += self.includes(current)[1]
        digest = hashlib.sha256("\0".join(context).encode())
        for name in sorted(seen):
            digest.update(os.path.relpath(name, ROOT).encode())
            digest.update(self.includes(name)[0])
        return digest.hexdigest()


def placeless(flags):
    """The flags of any clone of this tree."""
    return [flag.replace(ROOT, ".") for flag in flags]


class Passed:
    """The set of hashes that passed before; one empty file each, whose time says when it was last needed."""

    MONTH = 31 * 24 * 3600

    def __init__(self, check):
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        top = os.environ.get("PEERLANE_CHECKS") or os.path.join(cache, "peerlane-checks")
        self.folder = os.path.join(top, check)
        os.makedirs(self.folder, exist_ok=True)
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.stat().st_mtime < time.time() - self.MONTH:
                    os.unlink(entry.path)

    def __contains__(self, key):
        try:
            os.utime(os.path.join(self.folder, key))
        except FileNotFoundError:
            return False
        return True

    def add(self, key):
        with open(os.path.join(self.folder, key), "w", encoding="utf-8"):
            pass


def taken_apart(entry, build):
    """An entry for each source where several are compiled as one (peerlane_unite of cmake/compiler.cmake)."""
    path = os.path.join(entry["directory"], entry["file"])
    if not path.startswith(os.path.join(build, "units") + "/"):
        return [entry]
    with open(path, "rb") as stream:
        return [dict(entry, file=os.path.join(ROOT, name.decode())) for name in INCLUDE.findall(stream.read())]


def load_commands(build):
    """{source: (folder, flags)} without output, input, precompiled header and what only g++ knows."""
    commands = {}
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as stream:
        entries = json.load(stream)
    for entry in (alone for entry in entries for alone in taken_apart(entry, build)):
        source = os.path.normpath(os.path.join(entry["directory"], entry["file"]))
        inside = os.path.relpath(source, ROOT)
        if not inside.startswith(tuple(f + "/" for f in FOLDERS)):
            continue
        # What nvcc warns of is an error there, and clang 16 does not know its headers; C is compiled by gcc, -pedantic.
        if inside.endswith((".cu", ".c")):
            continue
        words = iter(shlex.split(entry["command"]))
        flags = []
        for word in words:
            if word in ("-o", "-c", "-x"):
                next(words)
            elif word == "-include" or word == "-Xclang":
                next(words)
            elif word.startswith("-I") and not word[2:].startswith("/"):
                flags.append("-I" + os.path.join(entry["directory"], word[2:]))
            elif word == "-isystem":
                flags += [word, next(words)]
            elif word.startswith(("-I", "-D", "-std", "-m", "-W", "-pthread")) and word != "-Winvalid-pch":
                flags.append(word)
        commands[source] = (entry["directory"], tuple(flags))
    return commands


def run_parallel(jobs):
    """Runs the calls on all cores; yields what each returned, in order of completion."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        for future in concurrent.futures.as_completed([pool.submit(job) for job in jobs]):
            yield future.result()


class Part:
    """A source as a part of a unit: its unnamed namespaces have names, and so do things in them that clash."""

    def __init__(self, source, number):
        self.source = source
        self.number = number
        with open(source, encoding="utf-8") as stream:
            self.text = stream.read()
        own = "\n".join(re.findall(r"^namespace \{$(.*?)^\}  // namespace$", self.text, re.MULTILINE | re.DOTALL))
        self.declared = {name for names in DECLARED.findall(own) for name in names if name}
        self.declared.update(name for name in ENTRIES if re.search(rf"^\S.*\b{name}\(", self.text, re.MULTILINE))
        self.renamed = set()

    def rename(self, names):
        """Says whether that changed anything."""
        fresh = (names & self.declared) - self.renamed
        self.renamed |= fresh
        return bool(fresh)

    def content(self):
        name = f"part_{self.number}"
        text = re.sub(r"^namespace \{$", f"namespace {name} {{}} using namespace {name}; namespace {name} {{",
                      self.text, flags=re.MULTILINE)
        for own in self.renamed:  # not what is a member of something
            text = re.sub(rf"(?<![\w.:>/\"]){own}\b", f"{own}Part{self.number}", text)
        return f"// {self.source}\n{text}\n"


class Unit:
    """Several sources as one file."""

    def __init__(self, folder, sources):
        self.sources = sources
        self.parts = [Part(source, number) for number, source in enumerate(sources)]
        name = hashlib.sha256("\0".join(sources).encode()).hexdigest()[:16]
        self.path = os.path.join(folder, name + ".cc")
        counts = collections.Counter(name for part in self.parts for name in part.declared)
        self.rename({name for name, times in counts.items() if times > 1})

    def rename(self, names):
        """Writes the unit with these names renamed as well. Says whether that changed anything."""
        changed = [part.rename(names) for part in self.parts]
        self.ends = []  # line after the last one of each source
        lines = 1
        with open(self.path, "w", encoding="utf-8") as stream:
            for part in self.parts:
                text = part.content()
                stream.write(text)
                lines += text.count("\n")
                self.ends.append(lines)
        return any(changed)

    def fit(self, command, folder):
        """Who does not go with the others, after everything was renamed that `command` finds to clash."""
        while True:
            answer = subprocess.run([*command, self.path], cwd=folder, capture_output=True, text=True, check=False)
            guilty = self.blamed(answer)
            if not guilty or not self.rename(set(CLASH.findall(answer.stderr))):
                return guilty

    def blamed(self, answer):
        """The sources that the errors of a compiler's answer point at, or include; all of them if it says neither."""
        if answer.returncode == 0:
            return []
        numbers, including = set(), None
        for entering, path, line, what in re.findall(r"^(In file included from )?(\S+?):(\d+)[:,](.*)$",
                                                     answer.stdout + answer.stderr, re.MULTILINE):
            if path == self.path:
                including = bisect.bisect_right(self.ends, int(line))
            if " error:" in what:
                numbers.add(including)
            if path == self.path and not entering:
                including = None  # clang says again who includes what comes now; clang-tidy never does
        if not numbers or None in numbers:
            return list(self.sources)
        return [self.sources[number] for number in sorted(numbers)]


class Tidy:
    def __init__(self, build):
        self.splits = 0
        self.scratch = os.path.join(build, "checks", "tidy-units")
        os.makedirs(self.scratch, exist_ok=True)
        version = subprocess.run(["clang-tidy-16", "--version"], capture_output=True, text=True, check=True).stdout
        with open(os.path.join(ROOT, ".clang-tidy"), encoding="utf-8") as stream:
            self.context = version + stream.read()
        folders = "|".join(FOLDERS)
        self.filter = f"^{re.escape(ROOT)}/({folders})/"

    @staticmethod
    def without_warnings(flags, *wanted):
        """g++ warns already; of what only clang knows, `wanted` says what remains."""
        return [flag for flag in flags if not flag.startswith("-W")] + ["-Wno-everything", *wanted]

    def command(self, source, flags):
        return ["clang-tidy-16", "--quiet", "--config-file=" + os.path.join(ROOT, ".clang-tidy"),
                "--header-filter=" + self.filter, source, "--",
                *self.without_warnings(flags, "-Wthread-safety")]

    def check(self, sources, folder, flags):
        """[(source, "" or what is wrong)]"""
        if len(sources) == 1:
            answer = subprocess.run(self.command(sources[0], flags), cwd=folder, capture_output=True,
                                    text=True, check=False)
            return [(sources[0], answer.stdout + answer.stderr if answer.returncode else "")]
        unit = Unit(self.scratch, sources)
        guilty = unit.fit([CLANG, "-fsyntax-only", "-ferror-limit=0", *self.without_warnings(flags)], folder)
        if guilty:  # they do not go together
            self.splits += 1
            rest = [source for source in sources if source not in guilty]
            if not rest:
                half = len(sources) // 2
                rest, guilty = sources[:half], sources[half:]
            return self.check(rest, folder, flags) + self.check(guilty, folder, flags)
        answer = subprocess.run(self.command(unit.path, flags), cwd=folder, capture_output=True, text=True,
                                check=False)
        guilty = unit.blamed(answer)
        results = [(source, "") for source in sources if source not in guilty]
        for source in guilty:
            results += self.check([source], folder, flags)
        return results


def check_tidy(build):
    tidy = Tidy(build)
    contents = Contents(os.path.join(build, "generated"))
    passed = Passed("tidy")
    commands = load_commands(build)
    keys, batches = {}, {}
    for source, (folder, flags) in sorted(commands.items()):
        keys[source] = contents.hash(source, tidy.context, *placeless(flags))
        if keys[source] not in passed:
            batches.setdefault((folder, flags), []).append(source)
    jobs = []
    for (folder, flags), sources in batches.items():
        for start in range(0, len(sources), BATCH):
            part = sources[start:start + BATCH]
            jobs.append(lambda part=part, folder=folder, flags=flags: tidy.check(part, folder, flags))
    fresh, wrong = 0, 0
    for results in run_parallel(jobs):
        for source, text in results:
            fresh += 1
            if text:
                wrong += 1
                print(text)
            else:
                passed.add(keys[source])
    print(f"clang-tidy: {len(commands)} sources, {fresh} looked at now, {wrong} with warnings"
          f" ({tidy.splits} units split)")
    return 1 if wrong or not commands else 0


def check_headers(build):
    contents = Contents(os.path.join(build, "generated"))
    passed = Passed("headers")
    commands = load_commands(build)
    headers = []
    for top in FOLDERS:
        for folder, _, files in os.walk(os.path.join(ROOT, top)):
            headers += [os.path.join(folder, f) for f in files
                        if f.endswith(".h") and f[:-2] + ".cc" not in files]
    if not commands:
        print(f"{build}/compile_commands.json names no source of ours")
        return 1
    gcc = subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout

    def flags_for(header):
        """The flags of the source nearest to the header."""
        nearest = max(commands, key=lambda source: (len(os.path.commonpath([source, header])), source))
        return commands[nearest][1]

    def check(header):
        name = os.path.relpath(header, ROOT)
        flags = flags_for(header)
        key = contents.hash(header, gcc, *placeless(flags))
        if key in passed:
            return name, ""
        answer = subprocess.run(["g++", "-fsyntax-only", *flags, "-I", ROOT, "-x", "c++", "-"],
                                input=f'#include "{name}"\n', capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            passed.add(key)
            return name, ""
        return name, answer.stderr or "g++ failed without a word"

    wrong = 0
    for name, text in run_parallel([lambda h=h: check(h) for h in headers]):
        if text:
            wrong += 1
            print(f"{name} does not compile alone:\n{text}")
    print(f"{len(headers)} headers without a source of their own, {wrong} do not compile alone")
    return 1 if wrong else 0


def main():
    modes = {"tidy": check_tidy, "headers": check_headers}
    if len(sys.argv) != 3 or sys.argv[1] not in modes:
        print(__doc__, file=sys.stderr)
        return 2
    return modes[sys.argv[1]](os.path.abspath(sys.argv[2]))


if __name__ == "__main__":
    sys.exit(main())
