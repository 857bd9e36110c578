#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares Peerlane with UCX on this machine, each measured by its own benchmark, in turns.

    sudo apt-get install ucx-utils python3      # ucx_perftest; Debian's own package
    make build
    bench/peers/ucx.py                          # --help lists what can be chosen

Both use two processes on the same two cores and shared memory (UCX_TLS=posix,cma unless the environment
says otherwise). What is compared:

  latency    ucp_put_lat           bench pingpong   half a round trip, both sides spin. UCX's receiver looks at
                                                    the last byte of the message; ours at a signal that is raised
                                                    after the message, so ours moves one cache line more.
  bandwidth  ucp_put_bw, window 64 bench post       the same operation again and again out of the same source into
                                                    the same destination: up to the size of the caches this is the
                                                    posting path and the cache, not the memory. Ours calls flush()
                                                    after every 64 posts; UCX waits for operations that have not
                                                    completed by themselves.

Every round runs all tests of both; a number is the median of the rounds. `ratio` is above 1 where Peerlane is
ahead, for bandwidth and for latency alike. Run it on an idle machine. Exit code 1 when Peerlane is behind in
latency at 8 bytes or in bandwidth at 4 KiB and above (beyond --tolerance), 2 when something is missing.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

KIB, MIB = 1 << 10, 1 << 20
# (kind, bytes, iterations of ucx_perftest, samples of ours): a good half second each.
TESTS = [
    ("latency", 8, 1_500_000, 4096),
    ("latency", 4 * KIB, 1_000_000, 4096),
    ("bandwidth", 8, 10_000_000, 10_000),
    ("bandwidth", 4 * KIB, 4_000_000, 10_000),
    ("bandwidth", 64 * KIB, 300_000, 4000),
    ("bandwidth", 1 * MIB, 12_000, 150),
    ("bandwidth", 16 * MIB, 400, 6),
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


def run_ucx(kind, size, iterations, cpus, port):
    """Microseconds per operation (half a round trip for latency) and operations per second."""
    environment = dict(os.environ)
    environment.setdefault("UCX_TLS", "posix,cma")
    environment.setdefault("UCX_LOG_LEVEL", "error")
    server = subprocess.Popen(["ucx_perftest", "-c", str(cpus[1]), "-p", str(port)],
                              stdout=subprocess.DEVNULL, env=environment)
    try:
        limit = time.monotonic() + 20
        while not listens(port):
            if server.poll() is not None or time.monotonic() > limit:
                stop(f"ucx_perftest does not listen on port {port}")
            time.sleep(0.01)
        test = "ucp_put_lat" if kind == "latency" else "ucp_put_bw"
        command = ["ucx_perftest", "127.0.0.1", "-p", str(port), "-c", str(cpus[0]), "-t", test, "-s", str(size),
                   "-n", str(iterations), "-w", str(max(100, iterations // 20)), "-f", "-v"]
        if kind == "bandwidth":
            command += ["-O", "64"]
        text = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, timeout=300).stdout
        server.wait(timeout=30)
    except (subprocess.SubprocessError, OSError) as error:
        stop(f"ucx_perftest failed: {error}")
    finally:
        server.kill()
        server.wait()
    rows = [line.split(",") for line in text.splitlines() if "," in line]
    values = dict(zip(rows[-2], (float(value) for value in rows[-1])))
    microseconds = values["50.0_percentile_lat"] if kind == "latency" else 1e6 / values["overall_mr"]
    return microseconds


def run_ours(kind, size, samples, cpus, program):
    operation = "pingpong" if kind == "latency" else "post"
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        command = [program, "bench", operation, "-b", str(size), "-e", str(size), "-n", str(samples),
                   "--cpus", f"{cpus[0]},{cpus[1]}", "--json", report]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            stop(f"{' '.join(command)}: {done.stderr.strip()}")
        with open(report, encoding="utf-8") as file:
            document = json.load(file)
    row = document["rows"][0]
    # As UCX reports them: the median of latencies, the mean of everything else.
    return document["machine"], row["p50_us"] if kind == "latency" else row["mean_us"]


def measure(arguments, cpus):
    ours = {test: [] for test in TESTS}
    ucx = {test: [] for test in TESTS}
    machine, port = {}, arguments.port
    for turn in range(arguments.rounds):
        for test in TESTS:
            kind, size, iterations, samples = test
            iterations = max(100, iterations // arguments.divide)
            samples = max(3, samples // arguments.divide)
            for second in (False, True):
                if second == (turn % 2 == 1):
                    machine, microseconds = run_ours(kind, size, samples, cpus, arguments.peerlane)
                    ours[test].append(microseconds)
                else:
                    port += 1
                    ucx[test].append(run_ucx(kind, size, iterations, cpus, port))
        print(f"# round {turn + 1} of {arguments.rounds} done", file=sys.stderr)
    return machine, ours, ucx


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peerlane", default=os.path.join(REPOSITORY, "build/bin/peerlane"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--divide", type=int, default=1, help="run this many times fewer iterations")
    parser.add_argument("--cpus", default="0,1", help="the cores of the two processes")
    parser.add_argument("--port", type=int, default=13400, help="for ucx_perftest: this one and those after it")
    parser.add_argument("--tolerance", type=float, default=0.0, help="a ratio this much below 1 still counts as equal")
    parser.add_argument("--json", help="write the table to this file as well")
    arguments = parser.parse_args()
    cpus = [int(cpu) for cpu in arguments.cpus.split(",")]
    if len(cpus) != 2:
        stop(f"--cpus is {arguments.cpus}; accepted are two numbers such as 0,1")
    if shutil.which("ucx_perftest") is None:
        stop("ucx_perftest is missing: sudo apt-get install ucx-utils")
    if not os.access(arguments.peerlane, os.X_OK):
        stop(f"{arguments.peerlane} is missing: make build")

    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"# this machine is busy (load {load:.1f}): numbers of a busy machine are worth little")
    machine, ours, ucx = measure(arguments, cpus)
    rows, behind = [], []
    print(f"{'what':<10} {'bytes':>9} {'peerlane':>12} {'ucx':>12} {'unit':<6} {'peerlane':>10} {'ucx':>10} {'unit':<5} {'ratio':>6}")
    for test in TESTS:
        kind, size = test[:2]
        mine, theirs = statistics.median(ours[test]), statistics.median(ucx[test])
        ratio = theirs / mine
        rate = "M/s" if size < 4 * KIB else "GB/s"
        scale = 1 if rate == "M/s" else size / 1e3
        print(f"{kind:<10} {size:>9} {mine:>12.4f} {theirs:>12.4f} {'us':<6} "
              f"{scale / mine:>10.2f} {scale / theirs:>10.2f} {rate:<5} {ratio:>6.3f}")
        rows.append({"what": kind, "bytes": size, "peerlane_us": mine, "ucx_us": theirs, "ratio": round(ratio, 4),
                     "peerlane_rounds_us": ours[test], "ucx_rounds_us": ucx[test]})
        must = size == 8 if kind == "latency" else size >= 4 * KIB
        if must and ratio < 1 - arguments.tolerance:
            behind.append(f"{kind} at {size} bytes: ratio {ratio:.3f}")
    if arguments.json:
        version = subprocess.run(["ucx_info", "-v"], capture_output=True, text=True).stdout.splitlines()
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine, "peer": version[0].lstrip("# ") if version else "UCX",
                       "transports": os.environ.get("UCX_TLS", "posix,cma"), "rows": rows}, file, indent=2)
            file.write("\n")
    for line in behind:
        print(f"behind: {line}")
    sys.exit(1 if behind else 0)


if __name__ == "__main__":
    main()
