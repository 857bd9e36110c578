# SPDX-License-Identifier: Apache-2.0
"""Debian packages that tests look into, and do not install."""

import os
import re
import subprocess

from problem import Problem


def without_hosts(text):
    return re.sub(r"\b[a-z]+://[^\s/]+", "MIRROR", text)


class Apt:
    """apt with lists and a state of its own, in a folder: the machine's stays as it is. Not for installing."""

    def __init__(self, folder, suites, needed_by, kind="deb"):
        """kind: deb, or deb-src for packages of sources. needed_by: for the people who see that it fails."""
        self.needed_by = needed_by
        for path in ("lists/partial", "archives/partial"):
            os.makedirs(os.path.join(folder, path))
        mirror = os.environ.get("GUEST_MIRROR") or self.mirror_of_machine()
        sources = os.path.join(folder, "sources.list")
        with open(sources, "w", encoding="utf-8") as stream:
            for suite in suites:
                stream.write(f"{kind} [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {mirror} {suite} main\n")
        status = os.path.join(folder, "status")
        open(status, "w", encoding="utf-8").close()
        self.options = [word for setting in
                        (f"Dir::State={folder}", f"Dir::State::status={status}", f"Dir::Cache={folder}",
                         f"Dir::Etc::sourcelist={sources}", "Dir::Etc::sourceparts=/nonexistent",
                         "APT::Sandbox::User=root", "Acquire::Languages=none", "Acquire::Retries=3") for word in ("-o", setting)]

    @staticmethod
    def mirror_of_machine():
        said = subprocess.run(["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages"],
                              capture_output=True, text=True, check=False).stdout
        for line in said.splitlines():
            mirror, suite = line.split()
            if suite == own_suite():
                return mirror
        raise Problem(f"the apt sources of this machine name no mirror of {own_suite()}; GUEST_MIRROR=URL names a Debian mirror")

    def run(self, what, program, *arguments, folder=None):
        done = subprocess.run([program, *self.options, *arguments], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0 or re.search(r"^(W: Failed|E:|Err:)", done.stdout + done.stderr, re.MULTILINE):
            said = [line for line in (done.stdout + done.stderr).splitlines() if re.match(r"[EW]:|Err:", line)]
            raise Problem(f"{what}, which {self.needed_by} needs (a network and a Debian mirror): "
                          + without_hosts(" ".join(said[-3:]) or f"{program} ended with {done.returncode}"))
        return done.stdout


def own_suite():
    with open("/etc/os-release", encoding="utf-8") as stream:
        found = re.search(r"^VERSION_CODENAME=(\S+)", stream.read(), re.MULTILINE)
    return found.group(1) if found else "this system"


def run(*command, **more):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        raise Problem(f"{' '.join(command[:3])} ... ended with {done.returncode}: {without_hosts(done.stderr.strip())}")
    return done.stdout
