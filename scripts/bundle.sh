#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes build/bundle: the command line, the tests, the benchmarks and every shared library they need except the C
# library's own. It runs from any folder of any x86-64-v2 Linux with glibc 2.36 or newer, without Python or
# packages; run_tests.sh inside runs the tests there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly bundle=$PWD/build/bundle limit_mib=64

# The same objects, linked once more: one shared library instead of a copy in each of fifty programs.
as_library() {
  cmake --preset release --log-level=WARNING -DPEERLANE_LIBRARY="$1" >/dev/null
}
trap 'as_library STATIC' EXIT
as_library SHARED
cmake --build --preset release --target all
rm -rf "$bundle"
mkdir -p "$bundle"/{bin,lib,corpus}

find build/bin -maxdepth 1 -type f -executable ! -name '*.py' -exec cp {} "$bundle/bin/" \;
strip "$bundle"/bin/*

# glibc must be the machine's own: it belongs to the kernel and the loader there.
ldd "$bundle"/bin/* | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
  grep -vE '/(ld-linux|libc|libm|libpthread|libdl|librt|libresolv|libutil|libanl)[-.]' |
  while read -r library; do
    cp -L "$library" "$bundle/lib/"
  done
strip --strip-unneeded "$bundle"/lib/*
if ldd "$bundle"/bin/* | grep 'not found'; then exit 1; fi

ctest --test-dir build -N -LE soak | awk '/^ *Test +#/ { print $3 }' |
  while read -r name; do
    [ ! -x "$bundle/bin/$name" ] || echo "$name"
  done >"$bundle/tests.txt"
while read -r program corpus; do
  [ -n "$program" ] || continue
  cp -r "$corpus" "$bundle/corpus/${program##*/}"
done <build/replay_targets.txt
cp build/gpu_targets.txt "$bundle/gpu_tests.txt"
cp build/bin/*.py "$bundle/bin/"
cp scripts/run_gpu_tests.sh scripts/run_gpu_check.sh "$bundle/"
cp scripts/run_bundled_tests.sh "$bundle/run_tests.sh"
cp LICENSE "$bundle/"

mib=$(du -sm "$bundle" | cut -f1)
echo "$bundle: $(wc -l <"$bundle/tests.txt") test programs, $(find "$bundle/lib" -type f | wc -l) libraries, $mib MiB"
if [ "$mib" -gt "$limit_mib" ]; then
  echo "larger than $limit_mib MiB; the largest files:" >&2
  find "$bundle" -type f -printf '%s %P\n' | sort -rn | head -5 >&2
  exit 1
fi
