#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes two folders, and a .tar.gz of each, that run from any place of any x86-64-v2 Linux with glibc 2.36 or newer, without
# Python or packages: build/bundle-bench (the command line, p2p_blocks, the library of the C API, the plug-in) and build/bundle-test
# (tests, examples; run_tests.sh in it; some tests start the command line, so it wants bundle-bench beside it).
# Usage: bundle.sh [--built]. It copies what the release build holds, where tests share one library, and links nothing;
# --built takes it as it is instead of building first. Fails when a part is larger than it may be.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly bench=$PWD/build/bundle-bench tests=$PWD/build/bundle-test
# Of the archives, which are what travels.
readonly bench_mib=20 tests_mib=40

if [ "${1:-}" != --built ]; then
  cmake --preset release --log-level=WARNING >/dev/null
  cmake --build --preset release --target all
fi
rm -rf "$bench" "$tests" "$bench.tar.gz" "$tests.tar.gz"
mkdir -p "$bench"/{bin,lib/nixl} "$tests"/{bin,lib,corpus}

cp build/bin/peerlane build/bin/peerlane-bench build/bin/peerlane-nixl build/bin/p2p_blocks "$bench/bin/"
cp build/lib/nixl/libplugin_PEERLANE.so "$bench/lib/nixl/"
# verbs_scale_tests links a copy of the library, and tests nothing in which machines differ.
find build/bin -maxdepth 1 -type f -executable ! -name '*.py' ! -name 'peerlane*' ! -name p2p_blocks ! -name verbs_scale_tests -exec cp {} "$tests/bin/" \;
ln -s ../../bundle-bench/bin/peerlane "$tests/bin/peerlane"
cp -P build/lib/libpeerlane_p2p.so* "$bench/lib/"
# Programs ask for it by its soname.
cp -L build/lib/libpeerlane_p2p.so.0 build/lib/libpeerlane.so "$tests/lib/"
# The NIC in software of the tests that need one, where nobody takes it for the machine's own.
mkdir "$tests/lib/software_hca"
cp -L build/software_hca/libibverbs.so.1 "$tests/lib/software_hca/"
strip "$bench"/bin/* $(find "$tests/bin" -type f)

# glibc must be the machine's own: it belongs to the kernel and the loader there.
for part in "$bench" "$tests"; do
  find "$part/bin" "$part/lib" -type f -exec ldd {} + 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
    grep -vE '/(ld-linux|libc|libm|libpthread|libdl|librt|libresolv|libutil|libanl|libpeerlane[a-z0-9_]*)[-.]' |
    while read -r library; do
      cp -L "$library" "$part/lib/"
    done
  find "$part/lib" -type f -exec strip --strip-unneeded {} +
  if find "$part/bin" "$part/lib" -type f -exec ldd {} + | grep 'not found'; then exit 1; fi
  cp LICENSE "$part/"
done

# A line for each: its name, and the settings of the NIC that it runs on.
ctest --test-dir build --show-only=json-v1 -LE 'soak|torture' | python3 -c '
import json, os, sys
for test in json.load(sys.stdin)["tests"]:
    settings = next((each["value"] for each in test["properties"] if each["name"] == "ENVIRONMENT"), [])
    nic = ["PEERLANE_IBV_SO=lib/software_hca/libibverbs.so.1" if each.startswith("PEERLANE_IBV_SO=") else each
           for each in settings if each.startswith(("PEERLANE_IBV_SO=", "SOFTWARE_HCA_")) and "_FABRIC=" not in each]
    if os.access(os.path.join(sys.argv[1], test["name"]), os.X_OK):
        print(test["name"], *nic)
' "$tests/bin" >"$tests/tests.txt"
while read -r program corpus; do
  [ -n "$program" ] || continue
  cp -r "$corpus" "$tests/corpus/${program##*/}"
done <build/replay_targets.txt
cp build/gpu_targets.txt "$tests/gpu_tests.txt"
cp build/bin/*.py "$tests/bin/"
cp scripts/run_gpu_tests.sh scripts/run_gpu_check.sh "$tests/"
cp scripts/run_bundled_tests.sh "$tests/run_tests.sh"

status=0
weigh() {  # FOLDER MIB
  tar -C build --sort=name --owner=0 --group=0 --mtime=@0 -cf - "${1##*/}" | gzip -9 >"$1.tar.gz"
  local packed
  packed=$(stat -c %s "$1.tar.gz")
  printf '%s: %d files, %.1f MiB packed\n' "$1" "$(find "$1" -type f | wc -l)" "$(awk "BEGIN { print $packed / 1048576 }")"
  [ "$packed" -gt $(($2 << 20)) ] || return 0
  echo "larger than $2 MiB packed; the largest files:" >&2
  find "$1" -type f -printf '%s %P\n' | sort -rn | head -n 5 >&2
  status=1
}
weigh "$bench" $bench_mib
weigh "$tests" $tests_mib
exit $status
