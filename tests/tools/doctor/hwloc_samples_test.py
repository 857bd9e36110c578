#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`peerlane topo` on recorded machines of others: the samples of hwloc's own tests (BSD licence, its file COPYING),
taken from Debian's source package. Nothing of them is in this tree.

What `topo` says of each pair of devices is compared with what a second reading of the file gives, of the tree of
bridges alone and without libhwloc.

  hwloc_samples_test.py PEERLANE    the program
"""

import glob
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import xml.etree.ElementTree as xml

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "..", "debian"))
from check_cache import cache_folder, cached  # noqa: E402
from debian_packages import Apt, own_suite  # noqa: E402
from problem import Problem  # noqa: E402

PEERLANE = sys.argv.pop() if len(sys.argv) > 1 else ""
# Two sockets each; with RDMA devices of three makers, GPUs, switches, functions of one card.
SAMPLES = ["24em64t-2n6c2t-pci.xml", "32em64t-2n8c2t-pci-normalio.xml", "16intel64-manyVFs.xml"]
RDMA = "3"  # osdev_type


def download(part):
    apt = Apt(os.path.join(part, "apt"), [own_suite()], "the first run of the test of recorded machines", kind="deb-src")
    apt.run(f"apt cannot read the sources of {own_suite()}", "apt-get", "-q", "update")
    apt.run("apt cannot download the sources of hwloc", "apt-get", "-q", "source", "--download-only", "hwloc", folder=part)
    archive, = glob.glob(os.path.join(glob.escape(part), "hwloc_*.orig.tar.?z*[2z]"))
    with tarfile.open(archive) as packed:
        for member in packed:
            name = os.path.basename(member.name)
            if member.isfile() and (name in SAMPLES and "/xml/" in member.name or member.name.count("/") == 1 and name == "COPYING"):
                with packed.extractfile(member) as stream, open(os.path.join(part, name), "wb") as copy:
                    shutil.copyfileobj(stream, copy)
    missing = [name for name in [*SAMPLES, "COPYING"] if not os.path.exists(os.path.join(part, name))]
    if missing:
        raise Problem(f"{os.path.basename(archive)} has no {', '.join(missing)}")
    for path in [os.path.join(part, "apt"), *glob.glob(os.path.join(glob.escape(part), "hwloc_*"))]:
        shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


class Tree:
    """Where each PCI device of a file is: the bridges above it, from the device up, and the nodes that are near."""

    def __init__(self, path):
        self.above = {child: parent for parent in xml.parse(path).getroot().iter() for child in parent}
        self.pci = {thing.get("pci_busid"): thing for thing in self.above if thing.get("type") == "PCIDev"}
        self.rdma = {thing.get("name"): self.above[thing].get("pci_busid") for thing in self.above
                     if thing.get("type") == "OSDev" and thing.get("osdev_type") == RDMA}

    def bridges(self, bus):
        thing = self.above[self.pci[bus]]
        while thing.get("type") == "Bridge":
            yield thing
            thing = self.above[thing]

    def nodes(self, bus):
        thing = self.pci[bus]
        while not thing.get("nodeset"):
            thing = self.above[thing]
        return thing.get("nodeset")

    def path(self, one, other):
        """As `topo` names it: the kind, and the bridges on the way, the common one once, one more between sockets."""
        if one == other:
            return "same", 0
        ours, theirs = list(self.bridges(one)), list(self.bridges(other))
        common = next((bridge for bridge in ours if bridge in theirs), None)
        if common is not None:
            kind = "pcie-host-bridge" if common.get("bridge_type").startswith("0-") else "pcie-switch"
            return kind, ours.index(common) + theirs.index(common) + 1
        is_near = self.nodes(one) == self.nodes(other)
        return "numa-node" if is_near else "system", len(ours) + len(theirs) + (0 if is_near else 1)


class Samples(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        recipe = hashlib.sha256(" ".join(SAMPLES).encode()).hexdigest()[:12]
        cls.folder = cached(cache_folder("hwloc"), f"{own_suite()}-{recipe}", download)

    def read(self, name):
        path = os.path.join(self.folder, name)
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "report.json")
            done = subprocess.run([PEERLANE, "topo", "--from", path, "--json", report], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(report, encoding="utf-8") as stream:
                return Tree(path), json.load(stream)

    def test_the_licence_came_too(self):
        with open(os.path.join(self.folder, "COPYING"), encoding="utf-8") as licence:
            self.assertIn("Redistribution and use in source and binary forms", licence.read())

    def test_each_pair_of_devices(self):
        for name in SAMPLES:
            with self.subTest(name):
                tree, report = self.read(name)
                bus = {device["name"]: device["bus"] for device in report["devices"] if device["bus"]}
                self.assertGreaterEqual(len(bus), 6)
                said = {(path["from"], path["to"]): (path["path"], path["hops"]) for path in report["paths"]}
                expected = {pair: tree.path(bus[pair[0]], bus[pair[1]]) for pair in itertools.product(bus, bus)}
                self.assertEqual({pair: said[pair] for pair in expected}, expected)
                self.assertGreaterEqual({kind for kind, _ in expected.values()}, {"pcie-switch", "pcie-host-bridge", "system"})

    def test_each_rdma_device(self):
        for name in SAMPLES:
            with self.subTest(name):
                tree, report = self.read(name)
                said = {rdma["name"]: device["bus"] for device in report["devices"] for rdma in device["rdma"]}
                self.assertTrue(said)
                self.assertEqual(said, tree.rdma)


if __name__ == "__main__":
    unittest.main()
