# SPDX-License-Identifier: Apache-2.0
"""`peerlane nixl` with a real wheel: its ABI, the plug-in among NIXL's own, a transfer, and nothing left behind."""

import glob
import os
import subprocess
import sys
import unittest

PLUGINS = glob.glob(os.path.join(os.environ["NIXL_WHEEL"], ".nixl_cu1?.mesonpy.libs/plugins"))[0]

# Memory that two back ends registered: each carries a transfer when it is named. It leaves without the ends of libraries:
# where the system has a libibverbs, a program with UCX of this wheel crashes there, with no other back end, too, because
# the two bring a libnl each.
TWO_BACK_ENDS = """
import os
import agents
agent = agents.nixl_agent("both", agents.nixl_agent_config(backends=["UCX", "PEERLANE"]))
memory, target = [agents.Memory(agent, 1 << 16, fill, kind="DRAM") for fill in ("both", 0)]
for backend in ("PEERLANE", "UCX", "PEERLANE"):
    target.set(0)
    handle = agent.initialize_xfer("WRITE", agent.get_xfer_descs([memory.piece()], "DRAM"),
                                   agent.get_xfer_descs([target.piece()], "DRAM"), "both", b"", [backend])
    assert agent.query_xfer_backend(handle) == backend
    agent.transfer(handle)
    agents.finish(agent, handle)
    agent.release_xfer_handle(handle)
    assert memory.bytes.tobytes() == target.bytes.tobytes()
print("both moved it", flush=True)
os._exit(0)
"""


def tree():
    return sorted(os.path.join(folder, name) for folder, _, names in os.walk(PLUGINS) for name in names)


class Install(unittest.TestCase):
    def run_program(self, *words):
        environment = {k: v for k, v in os.environ.items() if k not in ("NIXL_PLUGIN_DIR", "NIXL_LOG_LEVEL")}
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120,
                              cwd=os.path.dirname(os.path.abspath(__file__)))
        return done.returncode, done.stdout + done.stderr

    def nixl(self, command):
        return self.run_program(os.environ["NIXL_TEST_PROGRAM"], "nixl", command, "--python", sys.executable)

    def test_places_checks_and_removes(self):
        self.nixl("uninstall")  # of a test that was interrupted
        before = tree()
        code, said = self.nixl("check")
        self.assertNotEqual(code, 0, said)
        try:
            for _ in range(2):
                code, said = self.nixl("install")
                self.assertEqual(code, 0, said)
            code, said = self.nixl("check")
            self.assertEqual(code, 0, said)
            self.assertIn("PEERLANE", said)
            code, said = self.run_program(sys.executable, "-c", TWO_BACK_ENDS)
            self.assertEqual(code, 0, said)
            self.assertIn("both moved it", said)
        finally:
            code, said = self.nixl("uninstall")
        self.assertEqual(code, 0, said)
        self.assertEqual(tree(), before)


if __name__ == "__main__":
    unittest.main()
