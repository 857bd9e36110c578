# SPDX-License-Identifier: Apache-2.0
"""Debian's own verbs programs as two sides: a server and a client, in one guest or in two."""

import os
import re
import subprocess
import tempfile

from devices import meet, run, wait_until

PORT = 18515  # of both programs, by default
SECONDS = 100
LISTENING = "0A"


class Side:
    """One process, and what it says. For one thread."""

    def __init__(self, *command):
        self.command = command
        self.file = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.file, stderr=subprocess.STDOUT)

    def ended(self, seconds=SECONDS):
        """The status; a process that takes longer is killed, and that is an error."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"{' '.join(self.command)} did not end within {seconds} s:\n{self.said()}") from None

    def running(self):
        return self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def said(self):
        with open(f"/proc/self/fd/{self.file.fileno()}", encoding="utf-8", errors="replace") as stream:
            return stream.read()


def pingpong(device, server, iterations=200, size=65536):
    """Messages in both directions. Each side looks at what it got, one byte of each page (-c)."""
    return ["ibv_rc_pingpong", "-d", device, "-g", "1", "-c", "-m", "4096", "-n", str(iterations), "-s", str(size), *server]


def write_bandwidth(device, server, iterations=200, size=65536, seconds=None):
    """Writes from the client to the server; for some seconds instead of some times, if asked."""
    extent = ["-n", str(iterations)] if seconds is None else ["-D", str(seconds)]
    return ["ib_write_bw", "-d", device, "-x", "1", "-F", "-s", str(size), *extent, *server]


def listens():
    for name in ("tcp", "tcp6"):
        with open("/proc/net/" + name, encoding="utf-8") as stream:
            for line in stream.readlines()[1:]:
                local, state = line.split()[1], line.split()[3]
                if state == LISTENING and int(local.split(":")[1], 16) == PORT:
                    return True
    return False


def listens_by_rdma_cm():
    return "state LISTEN" in run("rdma", "resource", "show", "cm_id")


def start_server(*command, listening=listens):
    wait_until(f"nobody listens on port {PORT}", lambda: not listening())
    server = Side(*command)
    wait_until(f"{command[0]} listens on port {PORT}, or ends", lambda: listening() or not server.running())
    if not server.running():
        raise RuntimeError(f"{' '.join(command)} ended with {server.ended()}:\n{server.said()}")
    return server


def both_sides(tool, devices, **extent):
    """(server, client), both started: on two devices of this guest, or twice on one."""
    server = start_server(*tool(devices[0], [], **extent))
    return server, Side(*tool(devices[-1], ["127.0.0.1"], **extent))


def one_side(tool, device, **extent):
    """The side of this guest of two. Guest 0 has the server."""
    if os.environ["ROLE"] == "0":
        side = start_server(*tool(device, [], **extent))
        meet()
        return side
    meet()
    return Side(*tool(device, [os.environ["PEER_ADDRESS"]], **extent))


def expect_success(*sides):
    """All ended well, and found no wrong byte. Says how many bytes moved, which is what one side says."""
    for side in sides:
        status = side.ended()
        if status != 0 or "invalid data" in side.said():
            raise RuntimeError(f"{' '.join(side.command)} ended with {status}:\n{side.said()}")
    print(f"moved {bytes_of(sides[0].said())} bytes", flush=True)


def bytes_of(said):
    """Of ping-pong: in both directions. Of the bandwidth test: size x iterations."""
    line = re.search(r"^(\d+) bytes in ", said, re.MULTILINE)
    if line:
        return int(line.group(1))
    row = re.search(r"^ *(\d+) +(\d+) +\d+\.\d+ ", said, re.MULTILINE)
    if not row:
        raise RuntimeError(f"no number of bytes in:\n{said}")
    return int(row.group(1)) * int(row.group(2))
