#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Peerlane with UCX on this machine, each measured by its own benchmark, in turns.

    sudo apt-get install ucx-utils python3      # ucx_perftest; Debian's own package (1.13)
    bench/peers/pack.sh libucx-cu13             # UCX 1.22, from Python's index
    pip install --no-index --no-deps --target build/peers/ucx build/peers/libucx_cu13-*.whl
    make build
    bench/peers/ucx.py --perftest ucx_perftest --perftest build/peers/ucx/libucx/bin/ucx_perftest

--help lists what can be chosen. All use two processes on the same two cores, over shared memory (UCX_TLS=posix,cma unless the
environment says otherwise) and over tcp (UCX_TLS=tcp, --link tcp). With --unbound neither is bound to cores: then
Peerlane's threads that help with tcp run beside. What is compared:

  latency    ucp_put_lat           bench pingpong   half a round trip, both sides spin. UCX's receiver looks at
                                                    the last byte of the message; ours at a signal that is raised
                                                    after the message, so ours moves one cache line more.
  message    tag_lat               bench sendrecv   half a round trip of a message with its match.
  bandwidth  ucp_put_bw, window 64 bench post       the same operation again and again out of the same source into
                                                    the same destination: up to the size of the caches this is the
                                                    posting path and the cache, not the memory. Ours calls flush()
                                                    after every 64 posts; UCX waits for operations that have not
                                                    completed by themselves.
  one put    ucp_put_bw, window 1  bench put        a put that nothing was prepared for, checked and lowered anew.
                                                    Ours waits for its end and raises a signal, new bytes each time;
                                                    UCX rewrites one buffer and waits for what the put returned.
  one get    ucp_get, window 1     bench get        the same for a get.

Every round runs all tests of all; a number is the median of the rounds. `ratio` is above 1 where Peerlane is
ahead of the faster UCX, for bandwidth and for latency alike. Run it on an idle machine. Exit code 1 when Peerlane is behind over shared memory
in latency at 8 bytes or in bandwidth at 4 KiB and above (beyond --tolerance), 2 when something is missing.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

KIB, MIB = 1 << 10, 1 << 20
# What measures each kind: UCX's test and its options, ours.
KINDS = {
    "latency": ("ucp_put_lat", [], "pingpong"),
    "message": ("tag_lat", [], "sendrecv"),
    "bandwidth": ("ucp_put_bw", ["-O", "64"], "post"),
    "one put": ("ucp_put_bw", ["-O", "1"], "put"),
    "one get": ("ucp_get", ["-O", "1"], "get"),
}
SPINS = ("latency", "message")  # medians of half round trips; the others are means
# (wire, kind, bytes, iterations of ucx_perftest, samples of ours): a good half second each.
TESTS = [
    ("shm", "latency", 8, 1_500_000, 4096),
    ("shm", "latency", 4 * KIB, 1_000_000, 4096),
    ("shm", "message", 8, 1_000_000, 4096),
    ("shm", "message", 4 * KIB, 500_000, 4096),
    ("shm", "message", 1 * MIB, 5_000, 150),
    ("shm", "bandwidth", 8, 10_000_000, 10_000),
    ("shm", "bandwidth", 4 * KIB, 4_000_000, 10_000),
    ("shm", "bandwidth", 64 * KIB, 300_000, 4000),
    ("shm", "bandwidth", 1 * MIB, 12_000, 150),
    ("shm", "bandwidth", 16 * MIB, 400, 6),
    ("shm", "one put", 4 * KIB, 1_000_000, 1000),
    ("shm", "one put", 1 * MIB, 12_000, 150),
    ("shm", "one get", 4 * KIB, 1_000_000, 1000),
    ("shm", "one get", 1 * MIB, 12_000, 150),
    ("tcp", "latency", 8, 30_000, 4096),
    ("tcp", "message", 8, 30_000, 4096),
    ("tcp", "message", 64 * KIB, 10_000, 1000),
    ("tcp", "message", 1 * MIB, 1_000, 150),
    ("tcp", "bandwidth", 4 * KIB, 300_000, 1000),
    ("tcp", "bandwidth", 1 * MIB, 2_000, 50),
    ("tcp", "one put", 1 * MIB, 2_000, 150),
    ("tcp", "one put", 64 * MIB, 40, 20),
    ("tcp", "one get", 1 * MIB, 2_000, 150),
]
REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def stop(message):
    print(f"ucx.py: {message}", file=sys.stderr)
    sys.exit(2)


def listens(port):
    """True when some process of this host listens on the TCP port; asks without connecting."""
    wanted = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as lines:
                for line in lines:
                    fields = line.split()
                    if fields[1].endswith(wanted) and fields[3] == "0A":
                        return True
        except OSError:
            pass
    return False


class Ucx:
    """One installation of UCX: its ucx_perftest and the libraries beside that."""

    def __init__(self, program):
        self.program = shutil.which(program)
        if self.program is None:
            stop(f"{program} is missing; accepted is a ucx_perftest: sudo apt-get install ucx-utils, or bench/peers/pack.sh")
        self.environment = dict(os.environ)
        self.environment.setdefault("UCX_LOG_LEVEL", "error")
        self.environment.setdefault("UCX_WARN_UNUSED_ENV_VARS", "n")
        folder = os.path.dirname(os.path.abspath(self.program))
        beside = os.path.join(os.path.dirname(folder), "lib")
        if os.path.exists(os.path.join(beside, "libucp.so.0")):
            self.environment["LD_LIBRARY_PATH"] = beside
        said = subprocess.run([os.path.join(folder, "ucx_info"), "-v"], capture_output=True, text=True,
                              env=self.environment, check=False).stdout
        found = re.search(r"ersion:? ([0-9.]+)", said)
        self.name = f"ucx {found.group(1)}" if found else f"ucx in {folder}"

    def run(self, wire, kind, size, iterations, cpus, port):
        """Microseconds per operation: half a round trip for latency and messages."""
        environment = dict(self.environment)
        if wire == "tcp":
            environment["UCX_TLS"] = "tcp"
        else:
            environment.setdefault("UCX_TLS", "posix,cma")

        def on(cpu):  # with all threads that it will have
            return lambda: os.sched_setaffinity(0, {int(cpu)}) if cpu else None

        def bound(cpu):
            return ["-c", cpu] if cpu else []

        server = subprocess.Popen([self.program, *bound(cpus[1]), "-p", str(port)], stdout=subprocess.DEVNULL,
                                  env=environment, preexec_fn=on(cpus[1]))
        try:
            limit = time.monotonic() + 20
            while not listens(port):
                if server.poll() is not None or time.monotonic() > limit:
                    stop(f"{self.program} does not listen on port {port}")
                time.sleep(0.01)
            test, options, _ = KINDS[kind]
            command = [self.program, "127.0.0.1", "-p", str(port), *bound(cpus[0]), "-t", test, "-s", str(size),
                       "-n", str(iterations), "-w", str(max(100, iterations // 20)), "-f", "-v", *options]
            text = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=300,
                                  preexec_fn=on(cpus[0])).stdout
            server.wait(timeout=30)
        except (subprocess.SubprocessError, OSError) as error:
            stop(f"ucx_perftest failed: {error}")
        finally:
            server.kill()
            server.wait()
        rows = [line.split(",") for line in text.splitlines() if "," in line]
        values = dict(zip(rows[-2], (float(value) for value in rows[-1])))
        return values["50.0_percentile_lat"] if kind in SPINS else 1e6 / values["overall_mr"]


def run_ours(wire, kind, size, samples, cpus, program):
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        command = [program, "bench", KINDS[kind][2], "-b", str(size), "-e", str(size), "-n", str(samples),
                   "--link", wire, "--json", report] + (["--cpus", ",".join(cpus)] if cpus[0] else [])
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode != 0:
            stop(f"{' '.join(command)}: {done.stderr.strip()}")
        with open(report, encoding="utf-8") as file:
            document = json.load(file)
    row = document["rows"][0]
    # As UCX reports them: the median of latencies, the mean of everything else.
    return document["machine"], row["p50_us"] if kind in SPINS else row["mean_us"]


def measure(arguments, tests, cpus, peers):
    """Microseconds of every round, by test: ours, and of each UCX."""
    ours = {test: [] for test in tests}
    theirs = {test: {peer.name: [] for peer in peers} for test in tests}
    machine, port = {}, arguments.port
    for turn in range(arguments.rounds):
        for test in tests:
            wire, kind, size, iterations, samples = test
            iterations = max(100, iterations // arguments.divide)
            samples = max(3, samples // arguments.divide)
            everybody = [None, *peers]
            for step in range(len(everybody)):
                peer = everybody[(turn + step) % len(everybody)]
                if peer is None:
                    machine, microseconds = run_ours(wire, kind, size, samples, cpus, arguments.peerlane)
                    ours[test].append(microseconds)
                else:
                    port += 1
                    theirs[test][peer.name].append(peer.run(wire, kind, size, iterations, cpus, port))
        print(f"# round {turn + 1} of {arguments.rounds} done", file=sys.stderr)
    return machine, ours, theirs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peerlane", default=os.path.join(REPOSITORY, "build/bin/peerlane"))
    parser.add_argument("--perftest", action="append", metavar="PROGRAM",
                        help="a ucx_perftest; may stand several times (default: the one on PATH)")
    parser.add_argument("--only", help="shm, tcp, or one of: " + ", ".join(KINDS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--divide", type=int, default=1, help="run this many times fewer iterations")
    parser.add_argument("--cpus", default="0,1", help="the cores of the two processes")
    parser.add_argument("--unbound", action="store_true", help="they may use all cores")
    parser.add_argument("--port", type=int, default=13400, help="for ucx_perftest: this one and those after it")
    parser.add_argument("--tolerance", type=float, default=0.0, help="a ratio this much below 1 still counts as equal")
    parser.add_argument("--json", help="write the table to this file as well")
    arguments = parser.parse_args()
    cpus = arguments.cpus.split(",")
    if len(cpus) != 2 or not all(cpu.isdecimal() for cpu in cpus):
        stop(f"--cpus is {arguments.cpus}; accepted are two numbers such as 0,1")
    if arguments.unbound:
        cpus = ["", ""]
    peers = [Ucx(program) for program in arguments.perftest or ["ucx_perftest"]]
    if len({peer.name for peer in peers}) < len(peers):
        stop(f"--perftest names the same version twice: {', '.join(peer.name for peer in peers)}")
    tests = [test for test in TESTS if not arguments.only or arguments.only in (test[0], test[1])]
    if not tests:
        stop(f"--only is {arguments.only}; accepted are shm, tcp, {', '.join(KINDS)}")
    if not os.access(arguments.peerlane, os.X_OK):
        stop(f"{arguments.peerlane} is missing: make build")

    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"# this machine is busy (load {load:.1f}): numbers of a busy machine are worth little")
    machine, ours, theirs = measure(arguments, tests, cpus, peers)
    rows, behind = [], []
    heads = "".join(f" {peer.name:>12}" for peer in peers)
    print(f"{'wire':<5} {'what':<10} {'bytes':>9} {'peerlane':>12}{heads} {'unit':<6} {'peerlane':>10}{heads} {'unit':<5} {'ratio':>6}")
    for test in tests:
        wire, kind, size = test[:3]
        mine = statistics.median(ours[test])
        others = {name: statistics.median(rounds) for name, rounds in theirs[test].items()}
        ratio = min(others.values()) / mine
        rate = "M/s" if size < 4 * KIB else "GB/s"
        scale = 1 if rate == "M/s" else size / 1e3
        print(f"{wire:<5} {kind:<10} {size:>9} {mine:>12.4f}" + "".join(f" {other:>12.4f}" for other in others.values()) +
              f" {'us':<6} {scale / mine:>10.2f}" + "".join(f" {scale / other:>12.2f}" for other in others.values()) +
              f" {rate:<5} {ratio:>6.3f}")
        rows.append({"wire": wire, "what": kind, "bytes": size, "peerlane_us": mine, "peers_us": others, "ratio": round(ratio, 4),
                     "peerlane_rounds_us": ours[test], "peers_rounds_us": theirs[test]})
        must = wire == "shm" and (size == 8 if kind == "latency" else kind == "bandwidth" and size >= 4 * KIB)
        if must and ratio < 1 - arguments.tolerance:
            behind.append(f"{kind} at {size} bytes: ratio {ratio:.3f}")
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine, "peers": [peer.name for peer in peers],
                       "transports": os.environ.get("UCX_TLS", "posix,cma"), "bound": not arguments.unbound, "rows": rows}, file, indent=2)
            file.write("\n")
    for line in behind:
        print(f"behind: {line}")
    sys.exit(1 if behind else 0)


if __name__ == "__main__":
    main()
