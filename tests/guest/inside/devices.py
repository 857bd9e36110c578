# SPDX-License-Identifier: Apache-2.0
"""The RDMA devices of a guest: software devices (rxe) on network devices whose MTU lets 4096 bytes of payload pass.

  rxe0         on a device that leads back to itself (10.1.0.1), or on the wire to the other guest (OWN_ADDRESS)
  rxva, rxvb   on the two ends of a veth pair (10.5.0.1, 10.5.0.2): what one sends to the other crosses the pair, and
               what netem does there happens to it

Usage: devices.py single|crossed|wire
"""

import os
import re
import socket
import subprocess
import sys
import time

SECONDS = 60
MEETING_PORT = 7001
SYSFS = "/sys/class/infiniband"


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def wait_until(what, condition, seconds=SECONDS):
    """Looks again and again; time only ends it."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {seconds} s for this: {what}")
        time.sleep(0.02)


def exists(device):
    return os.path.isdir(os.path.join(SYSFS, device))


def add(device, interface, address):
    """Makes a device on an interface, which gets the address first: GID 1 is made of it (RoCE version 2)."""
    run("modprobe", "-a", "ib_uverbs", "rdma_ucm", "rdma_rxe")
    run("ip", "link", "set", interface, "mtu", "9000", "up")
    run("ip", "address", "add", address, "dev", interface)
    run("rdma", "link", "add", device, "type", "rxe", "netdev", interface)
    port = os.path.join(SYSFS, device, "ports", "1")

    def text(name):
        with open(os.path.join(port, name), encoding="utf-8") as stream:
            return stream.read().strip()

    gid = socket.inet_pton(socket.AF_INET6, "::ffff:" + address.split("/")[0])
    wait_until(f"port 1 of {device} is active", lambda: text("state") == "4: ACTIVE")
    wait_until(f"GID 1 of {device} is {address}", lambda: socket.inet_pton(socket.AF_INET6, text("gids/1")) == gid)
    active = re.search(r"active_mtu:\s+(\d+)", run("ibv_devinfo", "-d", device))
    if not active or active.group(1) != "4096":
        raise RuntimeError(f"the active MTU of {device} is {active and active.group(1)}; tests need 4096")


def single(device="rxe0", interface="dum0", address="10.1.0.1"):
    run("modprobe", "-a", "dummy")
    run("ip", "link", "add", interface, "type", "dummy")
    add(device, interface, address + "/24")


def crossed():
    """Both ends are addresses of this host, so the table `local` would send all by lo: it is asked later, except for
    what comes in, and each end has a route of its own to the other. Each knows the other's hardware address, because
    a lost question for it makes a queue pair fail to connect, which no retry of RDMA covers."""
    run("modprobe", "-a", "veth", "sch_netem")
    run("ip", "link", "add", "va", "type", "veth", "peer", "name", "vb")
    ends = {"va": ("10.5.0.1", "10.5.0.2", "101"), "vb": ("10.5.0.2", "10.5.0.1", "102")}
    for interface in ("all", "default", *ends):
        for name, value in (("rp_filter", "0"), ("accept_local", "1"), ("arp_ignore", "1")):
            with open(f"/proc/sys/net/ipv4/conf/{interface}/{name}", "w", encoding="utf-8") as stream:
                stream.write(value)
    for interface in ends:
        run("ip", "link", "set", interface, "mtu", "9000", "up")
    for interface, (own, _, _) in ends.items():
        add("rx" + interface, interface, own + "/24")
    for interface, (own, peer, table) in ends.items():
        with open(f"/sys/class/net/{'vb' if interface == 'va' else 'va'}/address", encoding="utf-8") as stream:
            run("ip", "neighbour", "replace", peer, "lladdr", stream.read().strip(), "dev", interface, "nud", "permanent")
        run("ip", "rule", "add", "pref", "5", "iif", interface, "lookup", "local")
        run("ip", "route", "add", peer + "/32", "dev", interface, "src", own, "table", table)
        run("ip", "rule", "add", "pref", "10", "from", own, "to", peer, "lookup", table)
    run("ip", "rule", "add", "pref", "50", "lookup", "local")
    run("ip", "rule", "del", "pref", "0")


def meet():
    """Both guests return when both have called it."""
    deadline = time.monotonic() + SECONDS
    if os.environ["ROLE"] == "0":
        with socket.create_server((os.environ["OWN_ADDRESS"], MEETING_PORT)) as server:
            server.settimeout(SECONDS)
            meeting = server.accept()[0]
    else:
        while True:
            try:
                meeting = socket.create_connection((os.environ["PEER_ADDRESS"], MEETING_PORT), timeout=1)
                break
            except OSError as error:  # not up yet, or not listening yet
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the other guest did not come within {SECONDS} s: {error}") from error
                time.sleep(0.05)
    with meeting:
        meeting.settimeout(SECONDS)
        meeting.sendall(b"x")
        if meeting.recv(1) != b"x":
            raise RuntimeError("the other guest left while the two met")


def wire():
    add("rxe0", "eth0", os.environ["OWN_ADDRESS"] + "/24")
    meet()


if __name__ == "__main__":
    try:
        {"single": single, "crossed": crossed, "wire": wire}[sys.argv[1]]()
    except (RuntimeError, OSError) as problem:
        sys.exit(f"devices.py: {problem}")
