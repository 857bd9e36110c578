#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a program of Debian's that tests verbs as two processes, server and client, on the software HCA.

Usage: two_processes.py LIBRARY FABRIC TOOL [ARGUMENT...]

LIBRARY is the libibverbs.so.1 that both load; FABRIC is a folder for what they share; SOFTWARE_HCA_PRELOAD in the
environment becomes their LD_PRELOAD. Prints what both said; ends with 0
only when both did, and when the device's library is the one that both had mapped.
"""

import os
import socket
import subprocess
import sys
import time

MOST_SECONDS = 180  # from the start


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def is_listening(port):
    """Whether some socket of this machine listens there; connecting would take the server's only connection."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table, encoding="ascii") as lines:
            for line in lines:
                fields = line.split()
                if fields[1].endswith(f":{port:04X}") and fields[3] == "0A":
                    return True
    return False


def has_mapped(pid, library):
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return os.path.realpath(library) in maps.read()


def main():
    library, fabric, tool = sys.argv[1:4]
    port = free_port()
    os.makedirs(fabric, exist_ok=True)
    environment = dict(os.environ, LD_LIBRARY_PATH=os.path.dirname(library), SOFTWARE_HCA_FABRIC=fabric)
    if environment.get("SOFTWARE_HCA_PRELOAD"):
        environment["LD_PRELOAD"] = environment["SOFTWARE_HCA_PRELOAD"]
    command = [tool, "-d", "sw0", "-p", str(port)] + sys.argv[4:]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        end = time.monotonic() + MOST_SECONDS
        while not is_listening(port):
            if server.poll() is not None or time.monotonic() > end:
                server.kill()
                print(server.communicate()[0])
                print(f"{tool}: the server does not listen")
                return 1
            time.sleep(0.01)
        mapped = has_mapped(server.pid, library)
        try:
            client = subprocess.run(command + ["127.0.0.1"], env=environment, stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True, timeout=end - time.monotonic())
            said = server.communicate(timeout=max(1, end - time.monotonic()))[0]
        except subprocess.TimeoutExpired as late:
            server.kill()
            print(late.stdout, server.communicate()[0])
            print(f"{tool}: not done after {MOST_SECONDS} s")
            return 1
    print(client.stdout, said)
    print(f"{tool}: client {client.returncode}, server {server.returncode}, library mapped: {mapped}")
    return 0 if client.returncode == 0 and server.returncode == 0 and mapped else 1


if __name__ == "__main__":
    sys.exit(main())
