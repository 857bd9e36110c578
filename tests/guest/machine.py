# SPDX-License-Identifier: Apache-2.0
"""One guest: boots QEMU, runs a command in it and tells how that ended. Software emulation: no KVM, no hardware."""

import fcntl
import os
import shlex
import shutil
import subprocess
import time

from image import image
from problem import Problem, need_program
from report import read_outcomes

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))

TIMED_OUT = 124
DIED = 125
NO_GUEST = 126  # no QEMU, no image

QEMU = "qemu-system-x86_64"
# Emulated kernels now and then die while they start, or hang: that is tried again, and never what a command did.
BOOTS = 3
BOOT_SECONDS = 120


class Guest:
    """A machine that is started for one command. `folder` is its own: emptied first, seen as /run/guest in the guest, and
    kept. Afterwards it holds output.log (of the command), console.log (of the kernel), qemu.log and tests/*.json (what
    each GoogleTest program reported). Not for several threads."""

    def __init__(self, folder, cpu="max", cpus=2, memory=2048, arguments=()):
        self.folder = os.path.abspath(folder)
        self.cpu = cpu
        self.cpus = cpus
        self.memory = memory
        self.arguments = list(arguments)

    def run(self, command, limit, show=lambda line: None):
        """The status of a bash command, TIMED_OUT after `limit` seconds of it, or DIED. `show` gets its lines at once."""
        need_program(QEMU, "qemu-system-x86")
        folder_of_image = image()
        os.makedirs(os.path.dirname(self.folder), exist_ok=True)
        with open(self.folder + ".lock", "w", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Problem(f"another guest runs in {self.folder}; --name gives this one a folder of its own") from None
            return self._boot_until_started(folder_of_image, command, limit, show)

    def _boot_until_started(self, folder_of_image, command, limit, show):
        for boot in range(1, BOOTS + 1):
            self._prepare(command)
            status = self._boot(folder_of_image, limit, show)
            if self._has("started"):
                return status
            show(f"guest: the kernel did not reach the command (boot {boot} of {BOOTS}); its last words:\n{self.last_words()}")
        return DIED

    def counts(self):
        """{"passed": 1, "failed": 0, "skipped": 0}: of all tests that GoogleTest reported."""
        tests = os.path.join(self.folder, "tests")
        outcomes = [outcome for name in os.listdir(tests) for _, outcome in read_outcomes(os.path.join(tests, name))]
        return {word: outcomes.count(word) for word in ("passed", "failed", "skipped")}

    def last_words(self):
        said = [self._text(name).strip().splitlines()[-12:] for name in ("qemu.log", "console.log")]
        return "\n".join(line for lines in said for line in lines)

    def _prepare(self, command):
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(os.path.join(self.folder, "tests"))
        shutil.copy(os.path.join(HERE, "start.sh"), self.folder)
        with open(os.path.join(self.folder, "command"), "w", encoding="utf-8") as stream:
            stream.write(f"export GTEST_OUTPUT=json:/run/guest/tests/\ncd {shlex.quote(TOP)}\n{command}\n")

    def _boot(self, folder_of_image, limit, show):
        deadline = time.monotonic() + BOOT_SECONDS
        started, shown = False, 0
        with open(os.path.join(self.folder, "qemu.log"), "wb") as log:
            # It shall not outlive this process, however that ends.
            machine = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", QEMU, *self._qemu_arguments(folder_of_image)],
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            while True:
                ended = self._ends_within(machine, 0.1)
                status = self._text("status")
                if not started and self._has("started"):
                    started, deadline = True, time.monotonic() + limit
                shown = self._show_lines(shown, show, ended or status)
                if status:
                    return int(status)
                if ended and not started and machine.returncode:
                    raise Problem(f"{QEMU} ended with {machine.returncode}: {self._text('qemu.log').strip()}")
                if ended:
                    return DIED
                if time.monotonic() > deadline:
                    return TIMED_OUT
        finally:
            machine.kill()
            machine.wait()

    @staticmethod
    def _ends_within(machine, seconds):
        try:
            machine.wait(seconds)
            return True
        except subprocess.TimeoutExpired:
            return False

    def _show_lines(self, shown, show, all_of_it):
        said = self._text("output.log")[shown:]
        whole = said if all_of_it else said[:said.rfind("\n") + 1]
        for line in whole.splitlines():
            show(line)
        return shown + len(whole)

    def _has(self, name):
        return os.path.exists(os.path.join(self.folder, name))

    def _text(self, name):
        if not self._has(name):
            return ""
        with open(os.path.join(self.folder, name), encoding="utf-8", errors="replace", newline="") as stream:
            return stream.read()

    def _qemu_arguments(self, folder_of_image):
        def share(tag, path, more):
            return ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{more}",
                    "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]

        if "," in self.folder:
            raise Problem(f"the folder of a guest, {self.folder}, has a comma, which QEMU takes for the end of a path")
        return ["-M", "q35", "-accel", "tcg,thread=multi", "-cpu", self.cpu, "-smp", str(self.cpus), "-m", str(self.memory),
                "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
                "-kernel", os.path.join(folder_of_image, "vmlinuz"), "-initrd", os.path.join(folder_of_image, "initrd"),
                "-append", "console=ttyS0 panic=-1 quiet loglevel=4 net.ifnames=0 mitigations=off audit=0 nokaslr tsc=reliable",
                "-serial", "file:" + os.path.join(self.folder, "console.log"),
                *share("root", "/", ",readonly=on"), *share("run", self.folder, ""), *self.arguments]

