#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the include and naming laws of the tree. Usage: check_layers.py [ROOT]; --laws lists them.

Reads text only (no compiler), prints "path:line: [law] what is wrong, what would be accepted", and ends
with 1 when anything is wrong. docs/house.md explains the laws.
"""

import os
import re
import sys
from collections import defaultdict

FLOORS = ["core", "os", "memory", "program", "transport", "progress", "session", "channel"]
# Rooms of the large floors, from the ground up: a file includes its own room and those before it. A folder that stands
# here holds all its files in the rooms below it, unless "." gives its own files a place.
ROOMS = {
    "peerlane/channel": ["protocol", "operation", "staging", "blocks", "transfer", "signal", "message/host",
                         "message/stream", "message/staged", "communicator", "port", "trigger"],
    "peerlane/program": ["model", "words", "ring", "cpu", "device", "kernel/launch", "kernel/copy", "kernel/message",
                         "kernel/resident", "stream/pools", "stream/message", "stream/queues", "stream/copy",
                         "stream/ordered", "stream/capture", "stream/submit"],
    "peerlane/session": ["wire", "staging", "line", "peer", "context"],
    "peerlane/memory": [".", "cuda"],
    "peerlane/p2p": [".", "stream", "segment", "pair", "process", "calls"],
    "tools": ["report", "memory", "trial", "doctor", "file", "nixl", "measure", "ceiling", "bench/sides", "bench/gpu",
              "bench/port", "bench/host", "bench/setup", "bench/p2p", "bench", "."],
}
# A folder with more is cut into rooms. A .h, .cc and .cu of one name are one stem.
MOST_STEMS = 25
SIZED_FOLDERS = ["peerlane", "tools", "explore"]
# What is behind the faces for users; it may include them.
ROOF_FOLDERS = ["p2p"]
# These see what users see.
FACE_FOLDERS = ["tools", "broker", "bench", "python", "integrations", "examples"]
FORBIDDEN_WORDS = {"util", "utils", "common", "helper", "helpers", "manager", "managers", "base", "impl", "misc"}
THIRD_PARTY = re.compile(r"(fmt|spdlog|asio|flatbuffers|hwloc|openssl|sodium|nlohmann|CLI|toml\+\+|gtest|benchmark)\b")
GENERATED = {"peerlane/core/version.h", "peerlane/session/wire/control_generated.h"}
# Only this file pair may include the list of all transports.
COMPOSITION_ROOT = "peerlane/session/context/context"
TRANSPORT_LIST = "peerlane/transport/all_transports"

SOURCE = (".h", ".c", ".cc", ".cu", ".cuh")
WITH_LICENSE = SOURCE + (".cmake", ".py", ".sh", ".fbs")
WITH_LICENSE_NAMES = {"CMakeLists.txt", "Makefile", ".clang-tidy"}
INCLUDE = re.compile(r'^\s*#\s*include(?:_next)?\s*([<"])([^>"]+)[>"]')

# Names of links, as registered in all_transports. "self" is a word of /proc, too.
LINK_NAMES = r'"(?:shm|cuda_ipc|tcp|verbs)"'
# In the library, no code needs such a name; elsewhere it may be shown and set, but not compared.
LINK_NAME = re.compile(LINK_NAMES)
COMPARED_LINK_NAME = re.compile(r'(?:[!=]=|\b(?:allowsLink|contains|find|count|starts_with)\()\s*(?:"self"|' + LINK_NAMES
                                + r')|(?:"self"|' + LINK_NAMES + r')\s*[!=]=')
COMPARED_ERROR = re.compile(r'message\(\)\s*\.\s*(?:find|rfind|contains|starts_with|ends_with|compare)\(|\.message\(\)\s*[!=]=\s*"')

LAWS = {
    "license": "the first line (after #!) is the SPDX line for Apache-2.0",
    "floor": "includes go downwards: " + " <- ".join(FLOORS),
    "roof": "no floor includes peerlane/*.h, the faces for users",
    "transport": "nobody includes a transport but itself and all_transports",
    "all_transports": "only session/context/context includes all_transports",
    "face": "tools, broker, bench, python, integrations and examples include only their own and public headers",
    "public": "a public header exists and includes only the standard library and public headers",
    "room": "includes within a floor go to rooms that stand before it in ROOMS",
    "size": f"a folder of {', '.join(SIZED_FOLDERS)} holds at most {MOST_STEMS} stems",
    "stem": "file stems are unique within a floor; a .h/.cc pair in one folder is one stem",
    "name": "no file or folder says " + ", ".join(sorted(FORBIDDEN_WORDS)),
    "cycle": "headers do not include each other in a circle",
    "path": "a quoted include is a path from the root that exists (or made from a .in file)",
    "first": "a .cc file includes its own header first",
    "link_name": "outside of transport/ nothing is decided by the name of a link: abilities and scopes say what it does",
    "error_text": "nothing is decided by words of an error: its code says what happened",
}


def walk(root):
    """Yields every file below root as a relative path, except build folders and hidden ones."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders
                            if not f.startswith((".", "build")) and f != "__pycache__")
        for name in sorted(files):
            yield os.path.relpath(os.path.join(folder, name), root)


def stem_of(path):
    return os.path.splitext(path)[0]


def floor_of(path):
    """Index of the floor that owns path; None outside peerlane/; len(FLOORS) for the roof."""
    parts = path.split("/")
    if parts[0] != "peerlane":
        return None
    if len(parts) == 2 or parts[1] in ROOF_FOLDERS:
        return len(FLOORS)
    return FLOORS.index(parts[1]) if parts[1] in FLOORS else None


def room_of(path):
    """(floor with rooms, room) of path; (None, None) where its floor has none."""
    folder = os.path.dirname(path)
    for floor in ROOMS:
        if folder == floor:
            return floor, "."
        if folder.startswith(floor + "/"):
            return floor, folder[len(floor) + 1:]
    return None, None


def stem_scope(path):
    """Where no other file may have the stem of path: its floor, or its top folder."""
    parts = path.split("/")
    deep = parts[0] in ("peerlane", "tests") and len(parts) > 2
    return "/".join(parts[:2]) if deep else parts[0]


def transport_of(path):
    parts = path.split("/")
    return parts[2] if parts[:2] == ["peerlane", "transport"] and len(parts) > 3 else None


class Checker:
    def __init__(self, root):
        self.root = root
        self.files = list(walk(root))
        self.sources = [f for f in self.files if f.endswith(SOURCE)]
        self.problems = []
        self.includes = {}  # path -> [(line, opening character, target)]
        self.public = self.read_public_headers()

    def report(self, path, line, law, text):
        self.problems.append(f"{path}:{line}: [{law}] {text}")

    def read(self, path):
        with open(os.path.join(self.root, path), encoding="utf-8", errors="replace") as stream:
            return stream.read().splitlines()

    def read_public_headers(self):
        listing = "cmake/public_headers.cmake"
        if listing not in self.files:
            return {}
        found = {}
        for number, line in enumerate(self.read(listing), 1):
            for header in re.findall(r"peerlane/[\w/]+\.h", line.split("#")[0]):
                found[header] = (listing, number)
        return found

    def check(self):
        for path in self.sources:
            matches = ((n, INCLUDE.match(line)) for n, line in enumerate(self.read(path), 1))
            self.includes[path] = [(n, m.group(1), m.group(2)) for n, m in matches if m]
        self.check_license()
        self.check_names()
        self.check_stems()
        self.check_sizes()
        for path in self.sources:
            if path.startswith("peerlane/") and floor_of(path) is None:
                self.report(path, 1, "floor", "lies on no floor; there are " + ", ".join(FLOORS))
            self.check_includes(path)
            self.check_own_header_first(path)
            self.check_decisions(path)
        self.check_public()
        self.check_cycles()
        return self.problems

    def check_license(self):
        for path in self.files:
            if not (path.endswith(WITH_LICENSE) or os.path.basename(path) in WITH_LICENSE_NAMES):
                continue
            lines = self.read(path)
            line = 1 if lines and lines[0].startswith("#!") else 0
            if len(lines) <= line or "SPDX-License-Identifier: Apache-2.0" not in lines[line]:
                self.report(path, line + 1, "license", "expected 'SPDX-License-Identifier: Apache-2.0'")

    def check_names(self):
        seen = set()
        for path in self.files:
            parts = path.split("/")
            for depth in range(len(parts)):
                prefix = "/".join(parts[:depth + 1])
                words = set(re.split(r"[_.\-]", parts[depth].lower()))
                if prefix not in seen and words & FORBIDDEN_WORDS:
                    word = ", ".join(sorted(words & FORBIDDEN_WORDS))
                    self.report(prefix, 1, "name", f"the name says '{word}'; say what it does instead")
                seen.add(prefix)

    def check_stems(self):
        owners = defaultdict(set)
        for path in self.sources:
            owners[stem_scope(path), os.path.basename(stem_of(path))].add(os.path.dirname(path))
        for (_, stem), folders in sorted(owners.items()):
            if len(folders) > 1:
                first, *others = sorted(folders)
                for folder in others:
                    self.report(f"{folder}/{stem}", 1, "stem", f"'{stem}' also names a file in {first}/")

    def check_sizes(self):
        stems = defaultdict(set)
        for path in self.sources:
            if path.split("/")[0] in SIZED_FOLDERS:
                stems[os.path.dirname(path)].add(stem_of(path))
        for folder, held in sorted(stems.items()):
            if len(held) > MOST_STEMS:
                self.report(folder, 1, "size", f"holds {len(held)} stems; accepted are {MOST_STEMS}")

    def check_room(self, path, line, target):
        floor, room = room_of(path)
        other_floor, other = room_of(target)
        if floor is None or floor != other_floor or target in GENERATED:
            return
        order = ROOMS[floor]
        if other in order and room in order and order.index(other) > order.index(room):
            self.report(path, line, "room", f"{room} stands before {other} in {floor} ('{target}')")

    def check_includes(self, path):
        floor_with_rooms, room = room_of(path)
        if floor_with_rooms and room not in ROOMS[floor_with_rooms]:
            self.report(path, 1, "room", f"lies in no room of {floor_with_rooms}; there are "
                                         + ", ".join(ROOMS[floor_with_rooms]))
        folder = path.split("/")[0]
        floor = floor_of(path)
        for line, opening, target in self.includes[path]:
            if opening != '"' and not target.startswith("peerlane/"):
                continue
            if self.is_made_from_template(path, target):
                continue
            if target not in GENERATED and not os.path.exists(os.path.join(self.root, target)):
                self.report(path, line, "path", f"'{target}' is not a path from the root")
                continue
            if floor is not None:
                self.check_floor(path, line, target, floor)
            self.check_room(path, line, target)
            if folder in FACE_FOLDERS and not target.startswith(folder + "/") and target not in self.public:
                self.report(path, line, "face",
                            f"'{target}' is not public (cmake/public_headers.cmake lists what is)")

    def is_made_from_template(self, path, target):
        """A header that CMake makes from a "<target>.in" of the same top folder (tests, say)."""
        top = path.split("/")[0]
        return any(f.startswith(top + "/") and os.path.basename(f) == target + ".in" for f in self.files)

    def check_floor(self, path, line, target, floor):
        other = floor_of(target)
        if other is None:
            self.report(path, line, "floor", f"the library cannot include '{target}', which lies outside it")
        elif other == len(FLOORS) and floor < other:
            self.report(path, line, "roof", f"'{target}' is a face for users; include the floor that has it")
        elif other > floor:
            self.report(path, line, "floor", f"{FLOORS[floor]} lies below {FLOORS[other]} ('{target}')")
        transport = transport_of(target)
        if transport and transport != transport_of(path) and stem_of(path) != TRANSPORT_LIST:
            self.report(path, line, "transport",
                        f"'{target}' belongs to the transport '{transport}'; use transport.h and link.h")
        if stem_of(target) == TRANSPORT_LIST and stem_of(path) not in (TRANSPORT_LIST, COMPOSITION_ROOT):
            self.report(path, line, "all_transports", f"only {COMPOSITION_ROOT} may include '{target}'")

    def check_decisions(self, path):
        """Comments may name what they like; tests may look at what users see."""
        if path.startswith(("tests/", "peerlane/transport/")) or path.endswith(".h.in"):
            return
        for number, line in enumerate(self.read(path), 1):
            code = line.split("//")[0]
            if COMPARED_LINK_NAME.search(code) or (path.startswith("peerlane/") and LINK_NAME.search(code)):
                self.report(path, number, "link_name", f"'{code.strip()}'; ask LinkTraits, LinkAbilities or LinkScope")
            if COMPARED_ERROR.search(code):
                self.report(path, number, "error_text", f"'{code.strip()}'; ask Status::code()")

    def check_own_header_first(self, path):
        """With this law, building the library proves that each header with a source compiles alone."""
        header = stem_of(path) + ".h"
        if not path.endswith(".cc") or header not in self.includes:
            return
        first = self.includes[path][0] if self.includes[path] else (1, "", "nothing")
        if first[2] != header:
            self.report(path, first[0], "first", f"includes '{first[2]}' before '{header}'")

    def check_public(self):
        for header, (listing, number) in sorted(self.public.items()):
            if header in GENERATED:
                continue
            if header not in self.includes:
                self.report(listing, number, "public", f"'{header}' does not exist")
                continue
            for line, opening, target in self.includes[header]:
                ours = opening == '"' or target.startswith("peerlane/")
                if ours and target not in self.public:
                    self.report(header, line, "public", f"is public, but '{target}' is not")
                elif not ours and THIRD_PARTY.match(target):
                    self.report(header, line, "public", f"<{target}> would become part of the interface")

    def check_cycles(self):
        state = {}  # absent: new, 1: on the path now, 2: done

        def visit(path, trail):
            state[path] = 1
            for line, _, target in self.includes.get(path, []):
                if state.get(target) == 1:
                    circle = trail[trail.index(target):] + [target]
                    self.report(path, line, "cycle", " -> ".join(circle))
                elif target in self.includes and target not in state:
                    visit(target, trail + [target])
            state[path] = 2

        for path in self.sources:
            if path not in state:
                visit(path, [path])


def main():
    if "--laws" in sys.argv[1:]:
        for law, text in LAWS.items():
            print(f"{law:15} {text}")
        return 0
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    checker = Checker(root)
    problems = checker.check()
    for problem in problems:
        print(problem)
    if not checker.sources:
        print(f"{root} holds no source file: nothing was checked")
        return 1
    print(f"{len(checker.sources)} source files, {len(LAWS)} laws, {len(problems)} violations")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
