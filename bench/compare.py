#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Says whether one build of `peerlane` is slower than another, row by row, on this machine.

    bench/compare.py OLD NEW                                   # two builds of bin/peerlane: the rows of scripts/bench.sh
    bench/compare.py OLD NEW --rows gpu --device cuda:0,cuda:0 # two processes that share a GPU
    bench/compare.py OLD NEW --rows port --device cuda:0       # port channels on one GPU

Each command of bench/rows_*.txt is run by the old build, by the new one and once more by the old one, in turns that rotate,
seven times each. What counts is the speed of a row's median sample; of the runs, again the median. The two series of the
old build are the A/A pair: they differ by nothing but what disturbs this machine. The *spread* of a row is the larger of

  * how far the medians of the two old series are apart, and
  * half the distance between the quartiles of all old runs,

both as part of the old median (of all old runs). A row is worse when the new median is below the old one by more than the spread and more than
--margin (0.03). A row whose spread is large can hide a loss: it is marked `noisy` from 0.1 on. Where a row is worse, run
that row alone again (--only) on an idle machine before you believe it.

A row of `setup` that is registered apart also says how many times as long it takes as the same blocks in one registration;
it is worse, too, where the median of the new build's runs is above 2.

Exit code: 0 no row is worse, 1 some are, 2 there was nothing to compare or a program failed. --json writes the table.
"""

import argparse
import fnmatch
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

FOLDER = os.path.dirname(os.path.abspath(__file__))
NOISY = 0.1
MOST_TIMES = 2.0  # registered apart, of one registration
TIMES = "times_of_one_registration"
SERIES = ("old", "new", "old_again")


def stop(message):
    print(f"compare.py: {message}", file=sys.stderr)
    sys.exit(2)


def commands_of(name):
    path = os.path.join(FOLDER, f"rows_{name}.txt")
    with open(path, encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    return [line for line in lines if line and not line.startswith("#")]


def name_of(command, row):
    """What a row is called in both builds. Engine and link are no part of it: a build may choose others."""
    if "row" in row:
        # The number of blocks that was the fastest in this run.
        return f"{command}: " + re.sub(r", \d+ blocks$", "", row["row"])
    words = [command + ":", row["op"], row["memory"]]
    words.append(f"{row['blocks']} x {row['bytes'] // row['blocks']}" if row["blocks"] > 1 else str(row["bytes"]))
    return " ".join(words)


def run(program, words, command, timeout):
    """{name: its row} of one run, by the microseconds of the median sample; rows that are no times are left out."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        line = [program, "bench", *words, "--json", report]
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            stop(f"{shlex.join(line)}: {error}")
        if done.returncode != 0 and f"operation: {words[0]} not in" in done.stderr:
            return {}, {}  # a build from before there was that operation
        if done.returncode != 0 or not os.path.exists(report):
            stop(f"{shlex.join(line)} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}")
        with open(report, encoding="utf-8") as file:
            document = json.load(file)
    rows = {}
    for row in document["rows"]:
        if row["p50_us"] <= 0:
            continue
        name, number = name_of(command, row), 1
        while name in rows:
            number += 1
            name = f"{name_of(command, row)} ({number})"
        rows[name] = row
    return document["machine"], rows


def judge(old, new, old_again, margin):
    """The verdict on one row, from the microseconds of its runs."""
    speeds = [[1 / value for value in series] for series in (old, new, old_again)]
    before = sorted(speeds[0] + speeds[2])
    base = statistics.median(before)
    apart = abs(statistics.median(speeds[0]) - statistics.median(speeds[2])) / base
    quartiles = statistics.quantiles(before, n=4, method="inclusive")
    spread = max(apart, (quartiles[2] - quartiles[0]) / 2 / base)
    change = statistics.median(speeds[1]) / base - 1
    return {"old_us": 1 / base, "new_us": 1 / statistics.median(speeds[1]), "change": round(change, 5),
            "spread": round(spread, 5), "worse": change < -margin and change < -spread, "noisy": spread >= NOISY,
            "runs_us": dict(zip(SERIES, (old, new, old_again)))}


def measure(programs, commands, arguments):
    found = {}  # name: {series: [row of each round]}
    machine = {}
    for command in commands:
        words = shlex.split(command)
        if arguments.device:
            words += ["--device", arguments.device]
        words += shlex.split(arguments.also)
        for turn in range(arguments.rounds):
            for step in range(len(SERIES)):
                series = SERIES[(turn + step) % len(SERIES)]
                told, rows = run(programs[series], words, command, arguments.timeout)
                machine = told or machine
                for name, row in rows.items():
                    found.setdefault(name, {series: [] for series in SERIES})[series].append(row)
        print(f"# {command}: {3 * arguments.rounds} runs", file=sys.stderr)
    return machine, found


def times_of(rows):
    """The median of how many times as long as one registration; None for rows that do not say."""
    said = [row[TIMES] for row in rows if TIMES in row]
    return statistics.median(said) if said else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", help="a build of bin/peerlane")
    parser.add_argument("new", help="another one")
    parser.add_argument("--rows", choices=("host", "gpu", "port"), default="host", help="bench/rows_NAME.txt")
    parser.add_argument("--only", metavar="PATTERN", help="commands that match, such as 'put*'")
    parser.add_argument("--device", help="of `peerlane bench`; the default for gpu and port is cuda:0,cuda:0")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each series (%(default)s)")
    parser.add_argument("--margin", type=float, default=0.03, help="a loss that is smaller never counts (%(default)s)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one run (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the table to this file as well")
    parser.add_argument("--also", metavar="OPTIONS", default="", help="further options of `peerlane bench`: --also='-n 51'")
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        stop(f"--rounds is {arguments.rounds}; accepted is 2 and more")
    if arguments.rows == "host" and arguments.device:
        stop(f"--device is {arguments.device}; --rows host takes none")
    if arguments.rows != "host" and not arguments.device:
        arguments.device = "cuda:0,cuda:0"
    for program in (arguments.old, arguments.new):
        if not os.access(program, os.X_OK):
            stop(f"{program} is no program that can be run; accepted are two builds of bin/peerlane")
    commands = [line for line in commands_of(arguments.rows)
                if not arguments.only or fnmatch.fnmatchcase(line, arguments.only)]
    if not commands:
        stop(f"--only is {arguments.only}; accepted is a pattern for one of: {'; '.join(commands_of(arguments.rows))}")

    load = os.getloadavg()[0]
    if load > 0.5:
        print(f"# this machine is busy (load {load:.1f}): numbers of a busy machine are worth little")
    programs = {"old": arguments.old, "new": arguments.new, "old_again": arguments.old}
    machine, found = measure(programs, commands, arguments)
    rows = []
    print(f"{'row':<64} {'old us':>11} {'new us':>11} {'change':>8} {'spread':>7}")
    for name, series in found.items():
        short = [which for which in SERIES if len(series[which]) < 2]
        if short:  # a row that one of the two builds does not have
            print(f"{name:<64} not in every run of: {', '.join(short)}")
            rows.append({"row": name, "missing": short, "worse": False})
            continue
        verdict = judge(*([row["p50_us"] for row in series[which]] for which in SERIES), arguments.margin)
        apart = times_of(series["new"])
        if apart is not None:
            verdict[TIMES] = round(apart, 3)
            verdict["worse"] = verdict["worse"] or apart > MOST_TIMES
        print(f"{name:<64} {verdict['old_us']:>11.4f} {verdict['new_us']:>11.4f} {verdict['change']:>+8.1%} "
              f"{verdict['spread']:>7.1%}{'  WORSE' if verdict['worse'] else ''}{'  noisy' if verdict['noisy'] else ''}"
              f"{f'  {apart:.2f} x one registration' if apart is not None else ''}")
        rows.append({"row": name, **verdict})
    compared = [row for row in rows if "missing" not in row]
    worse = [row["row"] for row in rows if row["worse"]]
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine, "rounds": arguments.rounds, "margin": arguments.margin, "rows": rows}, file, indent=2)
            file.write("\n")
    if not compared:
        stop("the two builds have no row in common")
    print(f"{len(compared)} rows compared, {len(worse)} worse")
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
