#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who has the processors while puts run, over our link and by perftest, in one guest. Usage: shares.py BUILD

From the kernel's record of thread switches, for half a second of runs like those of figures.py, but longer. For each: the
share of the processors' time that the device (rxe's kernel threads), the threads that post and wait, our progress threads
and everything else had, and switches of threads in a second. They go to /run/guest/shares.json as well.
"""

import collections
import json
import os
import re
import subprocess
import sys
import time

import devices
import figures
import verbs_tools

TRACE = "/sys/kernel/tracing"
SECONDS = 0.5
START_UP = 2  # until a run has come to its rounds, and the least that it takes after that
KINDS = ("device", "posting", "progress", "other", "idle")
SWITCH = re.compile(r"\[(\d+)\] \S+ +(\d+\.\d+): sched_switch: prev_comm=(.*?) prev_pid=(\d+) .*? ==> ")


def trace_file(name, text=None):
    with open(os.path.join(TRACE, name), "r" if text is None else "w", encoding="utf-8", errors="replace") as stream:
        return stream.read() if text is None else stream.write(text)


def threads_of(names):
    """{thread: whether it is its program's first} of the programs that run under one of the names."""
    found = {}
    for folder in os.listdir("/proc"):
        if not folder.isdigit():
            continue
        try:
            if os.path.basename(os.readlink(f"/proc/{folder}/exe")) in names:
                found |= {int(thread): thread == folder for thread in os.listdir(f"/proc/{folder}/task")}
        except OSError:
            pass  # it has ended, or is the kernel's
    return found


def kind_of(name, thread, threads):
    if thread == 0:
        return "idle"
    if name.startswith("kworker/u"):
        return "device"
    return {True: "posting", False: "progress", None: "other"}[threads.get(thread)]


def shares_of(trace, threads):
    """{kind: share}, and switches in a second."""
    spent, since, switches = collections.Counter(), {}, 0
    for processor, when, name, thread in SWITCH.findall(trace):
        now = float(when)
        if processor in since:
            spent[kind_of(name, int(thread), threads)] += now - since[processor]
            switches += 1
        since[processor] = now
    whole = sum(spent.values())
    if not whole:
        raise RuntimeError("the kernel recorded no switch")
    return {kind: round(spent[kind] / whole, 3) for kind in KINDS}, round(switches / whole * len(since))


def watch(name, is_running):
    time.sleep(START_UP)
    threads = threads_of({name})
    if list(threads.values()).count(True) < 2:
        raise RuntimeError(f"{name} does not run on both sides after {START_UP} s")
    trace_file("trace", "")
    trace_file("tracing_on", "1")
    time.sleep(SECONDS)
    trace_file("tracing_on", "0")
    if not is_running():
        raise RuntimeError(f"{name} ended within {START_UP + SECONDS} s")
    return shares_of(trace_file("trace"), threads)


def theirs(tool, *words):
    def command(device, server):
        return [tool, "-d", device, "-x", "1", "-F", *words, *server]

    sides = verbs_tools.both_sides(command, [figures.DEVICE])
    try:
        watched = watch(tool, lambda: all(side.running() for side in sides))
    except RuntimeError:
        for side in sides:
            side.kill()
        raise
    for side in sides:
        if side.ended() != 0:
            raise RuntimeError(f"{tool} failed:\n{side.said()}")
    return watched


def ours(program, *words):
    run = subprocess.Popen([program, "bench", *words, "--link", "verbs"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                           env=os.environ | {"PEERLANE_IB_HCA": figures.DEVICE})
    try:
        watched = watch(os.path.basename(program), lambda: run.poll() is None)
    except RuntimeError:
        run.kill()
        run.communicate()
        raise
    said, _ = run.communicate()
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} ended with {run.returncode}:\n{said}")
    return watched


def main():
    program = os.path.join(sys.argv[1], "bin", "peerlane-bench")
    devices.single()
    if not os.path.exists(os.path.join(TRACE, "trace")):
        subprocess.run(["mount", "-t", "tracefs", "tracefs", TRACE], check=True)
    trace_file("tracing_on", "0")
    trace_file("buffer_size_kb", "16384")
    trace_file("events/sched/sched_switch/enable", "1")
    rows = []
    for size in figures.ROUNDS:
        rounds = max(6 * 10**8 // size, 2 * figures.UNDER_WAY)  # some 5 s
        rows.append((size, theirs("ib_write_bw", "-s", str(size), "-n", str(rounds), "-t", str(figures.UNDER_WAY)),
                     ours(program, "post", "-b", str(size), "-e", str(size), "-n", str(rounds // figures.UNDER_WAY), "-w", "1")))
    size = str(figures.LATENCY_BYTES)
    rows.append((figures.LATENCY_BYTES, theirs("ib_write_lat", "-s", size, "-n", "100000"),
                 ours(program, "pingpong", "-b", size, "-e", size, "-n", "4000")))
    print(f"{'bytes':>8}  {'whose':8}" + "".join(f"{kind:>10}" for kind in KINDS) + f"{'switches/s':>12}")
    for size, *both in rows:
        for whose, (shares, switches) in zip(("perftest", "peerlane"), both):
            print(f"{size:>8}  {whose:8}" + "".join(f"{shares[kind]:>10.3f}" for kind in KINDS) + f"{switches:>12}")
    with open(os.path.join(figures.FOLDER, "shares.json"), "w", encoding="utf-8") as stream:
        json.dump([{"bytes": size, "whose": whose, "shares": shares, "switches_per_second": switches}
                   for size, *both in rows for whose, (shares, switches) in zip(("perftest", "peerlane"), both)], stream, indent=2)


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, OSError, subprocess.SubprocessError) as problem:
        sys.exit(f"shares.py: {problem}")
