# SPDX-License-Identifier: Apache-2.0
"""A program with an agent over sealed tcp that ends by exit() while a peer writes to it, and while others connect to it.
Python's ssl has the same libcrypto, and has it cleaned up at exit(). Usage: exiting_program.py before|after, which says
whether ssl comes before the back end; exiting_program.py write is the peer.
"""

import ctypes
import os
import subprocess
import sys
import threading

BYTES = 1 << 20
PEERS = 3  # at a time


def write(number, there, blob):
    """A new agent each time, until there is nobody any more."""
    from agents import Memory, make_agent, transfer

    try:
        for count in range(1000):
            agent = make_agent(f"near{number}.{count}")
            memory = Memory(agent, BYTES, 5)
            agent.add_remote_agent(blob)
            for _ in range(2):
                transfer(agent, "WRITE", [memory.piece()], [there], "far")
            if count == 0:
                os.write(1, b"writes\n")  # whole, whichever thread says it
    except Exception:
        pass


def writer():
    there = tuple(map(int, sys.stdin.readline().split()))
    blob = bytes.fromhex(sys.stdin.readline())
    threads = [threading.Thread(target=write, args=(number, there, blob)) for number in range(PEERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(0)


def loads_the_back_end():
    ctypes.CDLL(os.path.join(os.environ["NIXL_PLUGIN_DIR"], "libplugin_PEERLANE.so"))


def main():
    if sys.argv[1] == "after":
        loads_the_back_end()
    # exit() calls it behind libcrypto's clean-up: a while in which threads go on and peers come.
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(libc.usleep, ctypes.c_void_p(300_000), None)
    assert "_ssl" not in sys.modules and "_hashlib" not in sys.modules
    import ssl

    ssl.create_default_context()
    from agents import Memory, make_agent

    agent = make_agent("far")
    memory = Memory(agent, BYTES, 0)
    peer = subprocess.Popen([sys.executable, __file__, "write"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    peer.stdin.write(" ".join(map(str, memory.piece())) + "\n" + agent.get_agent_metadata().hex() + "\n")
    peer.stdin.flush()
    for _ in range(PEERS):
        assert peer.stdout.readline() == "writes\n"
    print("ends", flush=True)
    libc.exit(0)  # as in sys.exit(), but Python's own objects stay, as those of other threads' do


if sys.argv[1] == "write":
    writer()
else:
    main()
