#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/images/gpu_bandwidth.png: bandwidth against size, and of scattered lists against block size.

    bench/plot_gpu.py                                      # bench/results/gpu.json and nccl.jsonl
    bench/plot_gpu.py --out /tmp/x.png OURS.json PEER.jsonl ...

Needs matplotlib. A file is either what `peerlane bench --json` writes, {"machine": {...}, "rows": [...]}, or one
JSON object per line, as bench/peers/nccl.cu prints them. A row is drawn when it has:

  peer            whose row it is; absent: ours
  op or row       put, get (ours); sendrecv, blocks (peers); rows of any other name are not bandwidth and left out
  link            ours only: cuda_ipc; other links are left out
  bytes, blocks   of one message or list; blocks > 1 is a list of bytes / blocks each
  gbps            GB/s, 10^9 bytes
  ceiling         ours only, optional: the raw limit, where ceiling_unit is GB/s (or ceiling_gbps); drawn as a
                  dashed line, and as a black tick over a bar
  window          optional, 1: messages in flight; more than one makes a line of its own
  engine          optional, ours only: "ce" lists are marked as the copy engine's
  indexed         optional, ours only: the list's block numbers are fresh at every post
  prepared        optional, ours only: the list is a plan, posted again and again

Of rows that are alike in all of these but the figures, the last one counts.
"""

import argparse
import json
import os
import sys

REPOSITORY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(REPOSITORY, "bench", "results")
# Colours that people of every colour vision tell apart (Okabe and Ito).
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"]
GREYS = ["#7f7f7f", "#b0b0b0", "#4d4d4d"]
MARKERS = "osD^vP*"


def stop(message):
    print(f"plot_gpu.py: {message}", file=sys.stderr)
    sys.exit(2)


def read_rows(path):
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        stop(f"{error}; name the files that are there")
    try:
        document = json.loads(text)
        rows = document["rows"] if "rows" in document else [document]
        shared = {key: document[key] for key in ("peer",) if key in document}
    except json.JSONDecodeError:
        try:
            rows, shared = [json.loads(line) for line in text.splitlines() if line.strip()], {}
        except json.JSONDecodeError as error:
            stop(f"{path} is neither a report nor JSON lines: {error}")
    return [{**shared, **row} for row in rows]


def ceiling_of(row):
    if "ceiling_gbps" in row:
        return row["ceiling_gbps"]
    return row.get("ceiling") if row.get("ceiling_unit") == "GB/s" else None


def label_of(row, scattered):
    """The line that a row belongs to; None when it is not bandwidth between GPUs."""
    name, window = row.get("op", row.get("row")), int(row.get("window", 1))
    flight = f", {window} in flight" if window > 1 else ""
    if "peer" in row:
        wanted = "blocks" if scattered else "sendrecv"
        group = ", one group" if scattered else ""
        return f"{row['peer'].upper()}{group}{flight}" if name == wanted else None
    if name not in ("put", "get") or row.get("link", "cuda_ipc") != "cuda_ipc":
        return None
    variant = ", fresh block numbers" if row.get("indexed") else ""
    if scattered and not variant:
        variant = ", prepared" if row.get("prepared") else ", one call"
    if scattered and row.get("engine") == "ce":
        variant += ", copy engine"
    return f"{name}{variant}{flight}"


def series_of(rows, scattered):
    """{label: {"peer": bool, "points": {(bytes of a block, blocks): (gbps, ceiling)}}}; ours first."""
    series = {}
    for row in rows:
        blocks = int(row.get("blocks", 1))
        if (blocks > 1) != scattered or not row.get("gbps") or not row.get("bytes"):
            continue
        label = label_of(row, scattered)
        if label is None:
            continue
        line = series.setdefault(label, {"peer": "peer" in row, "points": {}})
        line["points"][(int(row["bytes"]) // blocks, blocks)] = (row["gbps"], ceiling_of(row))
    return dict(sorted(series.items(), key=lambda item: item[1]["peer"]))


def size_text(size):
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size} B"


def dressed(series):
    """Each line with its colour and marker: (label, line, colour, marker)."""
    counts = {True: 0, False: 0}
    for label, line in series.items():
        nth = counts[line["peer"]]
        counts[line["peer"]] += 1
        colours, markers = (GREYS, "x+1") if line["peer"] else (COLOURS, MARKERS)
        yield label, line, colours[nth % len(colours)], markers[nth % len(markers)]


def has_limit(series):
    return any(ceiling for line in series.values() for _, ceiling in line["points"].values())


def finish(axes, title, series, **legend):
    axes.set_title(title, fontsize=11)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("GB/s")
    axes.set_axisbelow(True)
    axes.grid(True, axis="y", color="#dddddd", linewidth=0.6)
    if series:
        axes.legend(fontsize=8, framealpha=0.9, **legend)


def draw_sizes(axes, series):
    for label, line, colour, marker in dressed(series):
        points = sorted(line["points"].items())
        axes.plot([size for (size, _), _ in points], [gbps for _, (gbps, _) in points], color=colour, marker=marker,
                  markersize=5, linewidth=1.6, label=label, zorder=3)
        limits = [(size, ceiling) for (size, _), (_, ceiling) in points if ceiling]
        if limits:
            axes.plot(*zip(*limits), color=colour, linestyle=(0, (4, 2)), linewidth=1.1, zorder=2)
    if has_limit(series):
        axes.plot([], [], color="#333333", linestyle=(0, (4, 2)), linewidth=1.1, label="raw limit of the same pattern")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("bytes of a message")
    sizes = sorted({size for line in series.values() for size, _ in line["points"]})
    sizes = sizes[::-(-len(sizes) // 12) or 1]
    axes.set_xticks(sizes, [size_text(size) for size in sizes], rotation=40, ha="right", fontsize=8)
    axes.tick_params(axis="x", which="minor", bottom=False)
    finish(axes, "One piece", series)


def draw_lists(axes, series):
    """Bars, because lists differ in two numbers."""
    lists = sorted({point for line in series.values() for point in line["points"]})
    width = 0.8 / max(1, len(series))
    for nth, (label, line, colour, _) in enumerate(dressed(series)):
        shift = (nth - (len(series) - 1) / 2) * width
        places = [(lists.index(point) + shift, *values) for point, values in sorted(line["points"].items())]
        axes.bar([place for place, _, _ in places], [gbps for _, gbps, _ in places], width * 0.92, color=colour,
                 label=label)
        for place, _, ceiling in places:
            if ceiling:
                axes.plot([place - width / 2, place + width / 2], [ceiling, ceiling], color="black", linewidth=1.3)
    if has_limit(series):
        axes.plot([], [], color="black", linewidth=1.3, label="raw limit of the same pattern")
    axes.set_xlabel("blocks of a list")
    names = [f"{count} \u00d7 {size_text(size)}" for size, count in lists]
    axes.set_xticks(range(len(lists)), names, rotation=25, ha="right", fontsize=8)
    axes.set_ylim(top=max(axes.get_ylim()[1] * (1.05 + 0.04 * len(series)), 1))  # room for the legend
    finish(axes, "Scattered lists", series, loc="upper left", ncols=2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="ours and those of peers")
    parser.add_argument("--out", default=os.path.join(REPOSITORY, "docs", "images", "gpu_bandwidth.png"))
    parser.add_argument("--title", default="", help="such as the machine")
    arguments = parser.parse_args()
    files = arguments.files or [path for path in (os.path.join(RESULTS, name) for name in ("gpu.json", "nccl.jsonl"))
                                if os.path.exists(path)]
    if not files:
        stop("bench/results has neither gpu.json nor nccl.jsonl; name the files to draw")
    try:
        import matplotlib
        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        stop("needs matplotlib (python3 -m pip install matplotlib)")
    rows = [row for path in files for row in read_rows(path)]
    contiguous, scattered = series_of(rows, False), series_of(rows, True)
    if not contiguous and not scattered:
        stop(f"no row of {', '.join(files)} is bandwidth between GPUs; --help says which are")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.8), facecolor="white")
    draw_sizes(left, contiguous)
    draw_lists(right, scattered)
    if arguments.title:
        figure.suptitle(arguments.title, fontsize=11)
    figure.tight_layout()
    os.makedirs(os.path.dirname(os.path.abspath(arguments.out)), exist_ok=True)
    figure.savefig(arguments.out, dpi=130, facecolor="white")
    print(arguments.out)


if __name__ == "__main__":
    main()
