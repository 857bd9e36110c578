# SPDX-License-Identifier: Apache-2.0
"""The image that guests boot: a Debian kernel and an initramfs with the modules that tests need.

It is made once and kept in PEERLANE_CHECKS (else peerlane-checks in the user's cache folder). All other files of a guest
are those of the machine itself, so programs of the build folder run in it as they are. Nothing is installed from the
suite of the kernel.
"""

import hashlib
import lzma
import os
import re
import shutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(os.path.dirname(HERE), "debian"))

import debian_packages  # noqa: E402
from check_cache import cache_folder, cached  # noqa: E402
from debian_packages import Apt, own_suite, run  # noqa: E402
from problem import Problem, need_program  # noqa: E402

# Suites drop superseded kernels, so a series is pinned and not a version. Before 7.3 the removal of a device waits for
# the last program that has it open, and the owner of memory hears nothing of an access that was refused.
SUITE = os.environ.get("GUEST_SUITE", "trixie-backports")
SERIES = os.environ.get("GUEST_SERIES", "7.3.")

# Loaded at every boot, in this order.
BOOT_MODULES = ["virtio_pci", "virtio_net", "9pnet_virtio", "9p", "overlay"]
# There for `modprobe`, with all that they need. udmabuf is always built in.
MODULES = ["ib_uverbs", "rdma_ucm", "rdma_rxe", "dummy", "veth", "sch_netem", "null_blk", "nvme",
           "vfio-pci", "vfio_iommu_type1"]


def choose_kernel(names, series, suite):
    """The newest version of the series among names of packages, without flavours that have no RDMA."""
    versions = [match.group(1) for match in (re.fullmatch(r"linux-image-(\d+\.\d+[\w.+~-]*-amd64)", name) for name in names)
                if match and not re.search(r"cloud|rt-amd64|unsigned|dbg", match.group(1))]
    fitting = [version for version in versions if version.startswith(series)]
    if not fitting:
        raise Problem(f"{suite} has no kernel of the series {series} (GUEST_SERIES, GUEST_SUITE choose others); "
                      f"it has: {', '.join(sorted(versions)) or 'none'}")
    return max(fitting, key=lambda version: [int(number) for number in re.findall(r"\d+", version)])


def download(part):
    """Unpacks kernel, modules and a static shell below part/tree; returns the kernel's version."""
    apt = Apt(os.path.join(part, "apt"), [SUITE, own_suite()], "the first image of a guest")
    apt.run(f"apt cannot read {SUITE} and {own_suite()}", "apt-get", "-q", "update")
    names = apt.run("apt cannot list kernels", "apt-cache", "--names-only", "search", "^linux-image-[0-9]").splitlines()
    version = choose_kernel([name.split()[0] for name in names], SERIES, SUITE)
    # Since 6.19 the package of the image only names these.
    parts = apt.run("apt cannot list modules", "apt-cache", "--names-only", "search",
                    f"^linux-(base|binary|modules)-{re.escape(version)}$").split("\n")
    kernel = [line.split()[0] for line in parts if line] or [f"linux-image-{version}"]
    debs = os.path.join(part, "debs")
    os.mkdir(debs)
    apt.run(f"apt cannot download the kernel {version}", "apt-get", "-q", "download", *kernel, "busybox-static", folder=debs)
    tree = os.path.join(part, "tree")
    for deb in sorted(os.listdir(debs)):
        run("dpkg", "-x", os.path.join(debs, deb), tree)
    if not os.path.isdir(os.path.join(tree, "lib")):
        os.symlink("usr/lib", os.path.join(tree, "lib"))
    return version


def modules_with_needs(tree, version):
    """Paths of all module files below tree; a name that the kernel does not know is an error."""
    run("depmod", "-b", tree, version)
    paths = []
    for name in BOOT_MODULES + MODULES:
        for line in run("modprobe", "-d", tree, "-S", version, "--show-depends", name).splitlines():
            kind, path = line.split()[:2]
            if kind == "insmod" and path not in paths:
                paths.append(path)
    return paths


def fill_initramfs(root, tree, version):
    for folder in ("bin", "dev", "proc", "sys", f"lib/modules/{version}"):
        os.makedirs(os.path.join(root, folder))
    shell = next(path for path in (os.path.join(tree, "bin/busybox"), os.path.join(tree, "usr/bin/busybox")) if os.path.exists(path))
    shutil.copy(shell, os.path.join(root, "bin/busybox"))
    shutil.copy(os.path.join(HERE, "init"), root)
    os.chmod(os.path.join(root, "init"), 0o755)
    with open(os.path.join(root, "boot_modules"), "w", encoding="utf-8") as stream:
        stream.write("\n".join(BOOT_MODULES) + "\n")
    for path in modules_with_needs(tree, version):
        target = os.path.join(root, "lib", re.sub(r".*?/lib/(?=modules/)", "", path))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if path.endswith(".xz"):
            with lzma.open(path) as packed, open(target.removesuffix(".xz"), "wb") as stream:
                shutil.copyfileobj(packed, stream)
        elif path.endswith(".ko"):
            shutil.copy(path, target)
        else:
            raise Problem(f"{path} is packed in a way that this script does not know; it knows .ko and .ko.xz")
    for name in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
        shutil.copy(os.path.join(tree, "lib/modules", version, name), os.path.join(root, "lib/modules", version))
    run("depmod", "-b", root, version)


def make_image(part):
    need_program("apt-get", "apt")
    need_program("cpio", "cpio")
    need_program("depmod", "kmod")
    print(f"making the image of guests, once: a kernel {SERIES} from {SUITE}, about 170 MB of downloads", flush=True)
    version = download(part)
    tree, root = os.path.join(part, "tree"), os.path.join(part, "root")
    fill_initramfs(root, tree, version)
    kernel = next(os.path.join(top, name) for top, _, names in os.walk(tree) for name in names if name.startswith("vmlinuz"))
    shutil.copy(kernel, os.path.join(part, "vmlinuz"))
    run("bash", "-c", "set -o pipefail; find . | LC_ALL=C sort | cpio -o -H newc --quiet -R 0:0 | gzip -1 >../initrd", cwd=root)
    with open(os.path.join(part, "version"), "w", encoding="utf-8") as stream:
        stream.write(version + "\n")
    for name in ("apt", "debs", "tree", "root"):  # mirrors' names, too
        shutil.rmtree(os.path.join(part, name))


def image():
    """The folder with vmlinuz, initrd and version."""
    recipe = hashlib.sha256(f"{SUITE} {BOOT_MODULES} {MODULES}".encode())
    for path in (os.path.join(HERE, "init"), os.path.join(HERE, "image.py"), debian_packages.__file__):
        with open(path, "rb") as stream:
            recipe.update(stream.read())
    return cached(cache_folder("guest"), f"{SERIES.rstrip('.')}-{recipe.hexdigest()[:12]}", make_image)
