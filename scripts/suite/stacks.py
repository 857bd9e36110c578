# SPDX-License-Identifier: Apache-2.0
"""The stacks of all threads of a process and of what it started, for programs that hang."""

import os
import shutil
import subprocess
import time

SECONDS = 60  # bounds the debugger's look at one process
ALL_SECONDS = 180  # bounds the look at all; the kernel's few words are said of those that are left
MOST_LINES = 600  # of one process


def parents():
    """{pid: its parent}"""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stream:
                    found[int(name)] = int(stream.read().rsplit(")", 1)[1].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                pass  # it ended meanwhile
    return found


def descendants(pid):
    """What a process started, and what that started, the oldest first."""
    of, found = parents(), [pid]
    for one in found:
        found += sorted(child for child, parent in of.items() if parent == one)
    return found[1:]


def of_kernel(pid):
    """Where each thread stands, as far as the kernel says without a debugger."""
    lines = []
    for thread in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
        words = []
        for name in ("comm", "wchan", "syscall"):
            try:
                with open(f"/proc/{pid}/task/{thread}/{name}", encoding="utf-8") as stream:
                    words.append(f"{name} {stream.read().strip()}")
            except OSError as error:
                words.append(f"{name}: {error.strerror}")
        lines.append(f"thread {thread}: {', '.join(words)}")
    return "\n".join(lines)


def of_debugger(pid, seconds):
    """All stacks by gdb; "" where there is none, it may not look, or no time is left."""
    if seconds <= 0 or not shutil.which("gdb"):
        return ""
    try:
        said = subprocess.run(["gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-p", str(pid), "-ex", "set print frame-arguments none",
                               "-ex", "thread apply all backtrace"], capture_output=True, text=True, errors="replace",
                              timeout=min(seconds, SECONDS), check=False, stdin=subprocess.DEVNULL).stdout
    except subprocess.TimeoutExpired as late:
        said = (late.stdout or b"").decode(errors="replace")
    begin = said.find("\nThread ")
    return "\n".join(said[begin + 1:].splitlines()[:MOST_LINES]) if begin >= 0 else ""


def stacks_of(pid, seconds=ALL_SECONDS):
    texts = []
    deadline = time.monotonic() + seconds
    for one in [pid, *descendants(pid)]:
        try:
            with open(f"/proc/{one}/cmdline", "rb") as stream:
                name = stream.read().replace(b"\0", b" ").decode(errors="replace")[:200]
            texts.append(f"-- process {one}: {name}\n{of_debugger(one, deadline - time.monotonic()) or of_kernel(one)}")
        except (FileNotFoundError, ProcessLookupError):
            pass  # it ended meanwhile
    return "\n".join(texts)
