#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Puts over our link beside ib_write_bw and ib_write_lat, in turns, in one guest. Usage: figures.py BUILD [TURNS]

Two processes, one emulated device (rxe0), so only the ratios say anything. 64 KiB and 1 MiB: one plan posted again and
again, 64 under way, as many as ib_write_bw has. 8 B: half of the way there and back, of a put with a signal, beside that
of a bare write. The medians are printed, and all turns go to /run/guest/figures.json.
"""

import json
import os
import re
import statistics
import subprocess
import sys

import devices
import verbs_tools

FOLDER = "/run/guest"
DEVICE = "rxe0"
ROUNDS = {65536: 512, 1 << 20: 64}
UNDER_WAY = 64
LATENCY_BYTES, LATENCY_ROUNDS, LATENCY_SAMPLES = 8, 500, 30


def perftest(tool, *words):
    def command(device, server):
        return [tool, "-d", device, "-x", "1", "-F", *words, *server]

    server, client = verbs_tools.both_sides(command, [DEVICE])
    for side in (client, server):
        if side.ended() != 0:
            raise RuntimeError(f"{tool} failed:\n{side.said()}")
    row = re.search(r"^ *\d+ +\d+( +[\d.]+)+", client.said(), re.MULTILINE)
    if not row:
        raise RuntimeError(f"no row of numbers in:\n{client.said()}")
    return [float(word) for word in row.group(0).split()]


def ours(program, *words):
    path = os.path.join(FOLDER, "bench.json")
    done = subprocess.run([program, "bench", *words, "--link", "verbs", "--json", path], capture_output=True, text=True,
                          env=os.environ | {"PEERLANE_IB_HCA": DEVICE}, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    with open(path, encoding="utf-8") as stream:
        row = json.load(stream)["rows"][0]
    if row["wrong"]:
        raise RuntimeError(f"{' '.join(words)}: wrong bytes")
    return row


def turn(program):
    """{what: (theirs, ours)}: GB/s, and microseconds for 8 bytes."""
    figures = {}
    for size, rounds in ROUNDS.items():
        gigabits = perftest("ib_write_bw", "-s", str(size), "-n", str(rounds), "-t", str(UNDER_WAY), "--report_gbits")[3]
        row = ours(program, "post", "-b", str(size), "-e", str(size), "-n", str(rounds // UNDER_WAY), "-w", "1")
        figures[str(size)] = gigabits / 8, row["gbps"]
    typical = perftest("ib_write_lat", "-s", str(LATENCY_BYTES), "-n", str(LATENCY_ROUNDS))[4]
    row = ours(program, "pingpong", "-b", str(LATENCY_BYTES), "-e", str(LATENCY_BYTES), "-n", str(LATENCY_SAMPLES))
    figures[str(LATENCY_BYTES)] = typical, row["p50_us"]
    return figures


def main():
    program = os.path.join(sys.argv[1], "bin", "peerlane-bench")
    turns = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    devices.single()
    all_turns = []
    for number in range(turns):
        all_turns.append(turn(program))
        print(f"turn {number + 1}: " + ", ".join(f"{size} B {theirs:.4g} {own:.4g}"
                                                 for size, (theirs, own) in all_turns[-1].items()), flush=True)
    rows = []
    for size in all_turns[0]:
        is_latency = int(size) == LATENCY_BYTES
        theirs, own = (statistics.median(figures[size][side] for figures in all_turns) for side in (0, 1))
        rows.append({"bytes": int(size), "what": "latency" if is_latency else "bandwidth",
                     "unit": "us" if is_latency else "GB/s", "perftest": theirs, "peerlane": own,
                     "ratio": round(theirs / own if is_latency else own / theirs, 3),
                     "perftest_turns": [figures[size][0] for figures in all_turns],
                     "peerlane_turns": [figures[size][1] for figures in all_turns]})
        print(f"{size:>8} B: perftest {theirs:.4g} {rows[-1]['unit']}, peerlane {own:.4g}, {rows[-1]['ratio']} of it")
    with open(os.path.join(FOLDER, "figures.json"), "w", encoding="utf-8") as stream:
        json.dump({"device": "rxe in an emulated guest", "kernel": os.uname().release, "rows": rows}, stream, indent=2)


if __name__ == "__main__":
    try:
        main()
    except (RuntimeError, OSError) as problem:
        sys.exit(f"figures.py: {problem}")
