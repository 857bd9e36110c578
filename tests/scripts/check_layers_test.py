#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each law of scripts/check_layers.py is broken once in a small tree, and must be the one that is reported."""

import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "scripts", "check_layers.py")
SPDX = "// SPDX-License-Identifier: Apache-2.0\n"


def source(*includes):
    return SPDX + "".join(f"#include {name}\n" for name in includes)


# A tree without a fault, with everything the laws allow.
SOUND = {
    "cmake/public_headers.cmake": "# SPDX-License-Identifier: Apache-2.0\nset(x peerlane/peerlane.h\n"
                                  "  peerlane/core/status.h peerlane/core/version.h)\n",
    "peerlane/peerlane.h": source('"peerlane/core/status.h"', "<vector>"),
    "peerlane/core/status.h": source("<string>", '"peerlane/core/version.h"'),
    "peerlane/core/status.cc": source('"peerlane/core/status.h"', "<fmt/format.h>"),
    "peerlane/core/log.h": source('"peerlane/core/status.h"'),
    "peerlane/transport/link.h": source('"peerlane/core/log.h"'),
    "peerlane/transport/all_transports.h": source('"peerlane/transport/link.h"'),
    "peerlane/transport/all_transports.cc": source('"peerlane/transport/all_transports.h"',
                                                   '"peerlane/transport/shm/ring.h"'),
    "peerlane/transport/shm/ring.h": source('"peerlane/transport/link.h"'),
    "peerlane/transport/tcp/frame.h": source('"peerlane/transport/link.h"'),
    "peerlane/session/context/context.cc": source('"peerlane/transport/all_transports.h"'),
    "tools/show.h": source("<CLI/CLI.hpp>"),
    "tools/show.cc": source('"tools/show.h"', '"peerlane/peerlane.h"'),
    "tools/bench/row.h": source('"tools/report/table.h"') + 'options.link = "tcp";  // not == "shm"\n',
    "tools/report/table.h": source(),
    "peerlane/transport/shm/show.h": source(),  # a stem of another floor
    "tests/core/place.h.in": SPDX,
    "tests/core/status_test.cc": source("<gtest/gtest.h>", '"place.h"', '"peerlane/transport/shm/ring.h"'),
    "scripts/run.sh": "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n",
}

# law -> the files that break it, and the file the report must begin with.
BROKEN = {
    "license": [({"peerlane/core/status.h": "#include <string>\n"}, "peerlane/core/status.h:1"),
                ({"scripts/run.sh": "#!/bin/sh\necho\n"}, "scripts/run.sh:2")],
    "floor": [({"peerlane/core/log.h": source('"peerlane/transport/link.h"'),
                "peerlane/transport/link.h": source()}, "peerlane/core/log.h:2"),
              ({"peerlane/core/log.h": source("<peerlane/transport/link.h>"),
                "peerlane/transport/link.h": source()}, "peerlane/core/log.h:2"),
              ({"peerlane/core/log.h": source('"tools/show.h"')}, "peerlane/core/log.h:2"),
              ({"peerlane/attic/box.h": source()}, "peerlane/attic/box.h:1")],
    "roof": [({"peerlane/core/log.h": source('"peerlane/peerlane.h"')}, "peerlane/core/log.h:2")],
    "transport": [({"peerlane/transport/tcp/frame.h": source('"peerlane/transport/shm/ring.h"')},
                   "peerlane/transport/tcp/frame.h:2"),
                  ({"peerlane/session/peer/peer.h": source('"peerlane/transport/shm/ring.h"')},
                   "peerlane/session/peer/peer.h:2")],
    "all_transports": [({"peerlane/session/peer/peer.h": source('"peerlane/transport/all_transports.h"')},
                        "peerlane/session/peer/peer.h:2")],
    "face": [({"tools/show.cc": source('"tools/show.h"', '"peerlane/core/log.h"')}, "tools/show.cc:3"),
             ({"bench/speed.cc": source('"tools/show.h"')}, "bench/speed.cc:2")],
    "public": [({"peerlane/core/status.h": source('"peerlane/core/log.h"'), "peerlane/core/log.h": source()},
                "peerlane/core/status.h:2"),
               ({"peerlane/core/status.h": source("<spdlog/spdlog.h>")}, "peerlane/core/status.h:2"),
               ({"cmake/public_headers.cmake": SOUND["cmake/public_headers.cmake"] + "# none\nset(y peerlane/p2p.h)\n"},
                "cmake/public_headers.cmake:5")],
    "room": [({"peerlane/session/wire/ticket.h": source('"peerlane/session/peer/peer.h"'),
               "peerlane/session/peer/peer.h": source()}, "peerlane/session/wire/ticket.h:2"),
             ({"peerlane/session/attic/box.h": source()}, "peerlane/session/attic/box.h:1")],
    "size": [({f"tools/part{number}.h": source() for number in range(25)}, "tools:1")],
    "stem": [({"peerlane/transport/tcp/link.h": source()}, "peerlane/transport/tcp/link"),
             ({"tools/bench/show.h": source()}, "tools/bench/show")],
    "name": [({"peerlane/core/string_util.h": source()}, "peerlane/core/string_util.h"),
             ({"peerlane/core/common/text.h": source()}, "peerlane/core/common")],
    "cycle": [({"peerlane/core/a.h": source('"peerlane/core/b.h"'),
                "peerlane/core/b.h": source('"peerlane/core/c.h"'),
                "peerlane/core/c.h": source('"peerlane/core/a.h"')}, "peerlane/core/c.h:2")],
    "path": [({"peerlane/core/log.h": source('"status.h"')}, "peerlane/core/log.h:2")],
    "first": [({"peerlane/core/status.cc": source("<string>", '"peerlane/core/status.h"')},
               "peerlane/core/status.cc:2")],
    "link_name": [({"peerlane/core/log.h": source() + 'bool isFar(Link l) { return l.name == kTcp || l.is("tcp"); }\n'},
                   "peerlane/core/log.h:2"),
                  ({"tools/show.h": source() + 'if (route.link != "shm") say();  // "shm" == far\n'}, "tools/show.h:2"),
                  ({"tools/show.h": source() + 'if ("self" == route.link) say();\n'}, "tools/show.h:2"),
                  ({"tools/show.h": source() + 'if (config.allowsLink("tcp")) say();\n'}, "tools/show.h:2")],
    "error_text": [({"peerlane/core/log.h": source() + 'if (s.message().find("no") != npos) retry();\n'},
                    "peerlane/core/log.h:2"),
                   ({"tools/show.h": source() + 'if (s.message() == "no") retry();\n'}, "tools/show.h:2")],
}


def run(*arguments):
    answer = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)
    return answer.returncode, answer.stdout


def check(changes):
    """Exit status and reported lines for the sound tree with some files replaced."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in {**SOUND, **changes}.items():
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as stream:
                stream.write(text)
        status, output = run(root)
        return status, [line for line in output.splitlines() if "[" in line]


class CheckLayers(unittest.TestCase):
    def test_sound_tree_passes(self):
        self.assertEqual(check({}), (0, []))

    def test_every_law_is_broken_here(self):
        _, laws = run("--laws")
        self.assertEqual(sorted(line.split()[0] for line in laws.splitlines()), sorted(BROKEN))

    def test_each_violation_is_reported_as_its_law(self):
        for law, cases in BROKEN.items():
            for changes, place in cases:
                with self.subTest(law=law, place=place):
                    status, lines = check(changes)
                    self.assertEqual(status, 1)
                    self.assertEqual(len(lines), 1, lines)
                    self.assertIn(f"[{law}]", lines[0])
                    self.assertTrue(lines[0].startswith(place), lines[0])

    def test_empty_tree_is_no_success(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(run(root)[0], 1)


if __name__ == "__main__":
    unittest.main()
