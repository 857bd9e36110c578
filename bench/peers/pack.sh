#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes small copies of the wheels of two peers, NIXL and UCX, for a machine that reaches no package index:
#
#     bench/peers/pack.sh [--python 3.12] [--wheels FOLDER] [nixl-cu13|libucx-cu13 ...]
#
# writes them to build/peers. There: `pip install --no-index --no-deps --target DIR build/peers/*.whl` (NIXL imports numpy), then
# `PYTHONPATH=DIR python3 -c 'import nixl_cu13'`, and bench/peers/ucx.py --perftest DIR/libucx/bin/ucx_perftest.
# --python: the version that NIXL's copy is for (default: this machine's). --wheels: take the originals from there
# instead of the index. A copy that is larger than 20 MiB, or that does not load here, is an error.
#
# What a copy lacks. Both: symbols and debug information. NIXL: expert parallelism for PyTorch (nixl_ep), programs, headers, and
# every back end but UCX and POSIX with the libraries that only those needed (S3, Azure, GPUNETIO, ...; so no
# telemetry exporters, either). UCX: static libraries, headers, the second and third copy of each library (a wheel holds no
# links), examples and io_demo. Nothing is compiled: what is left is the machine code of the originals.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly out=$PWD/build/peers limit=$((20 << 20))
here=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
python=$here originals="" wanted=()
while [ $# -gt 0 ]; do
  case $1 in
    --python) python=${2:?--python wants a version such as 3.12}; shift 2 ;;
    --wheels) originals=$(cd "${2:?--wheels wants a folder}" && pwd); shift 2 ;;
    nixl-cu13 | libucx-cu13) wanted+=("$1"); shift ;;
    *) echo "pack.sh: '$1' is not understood; accepted: --python VERSION, --wheels FOLDER, nixl-cu13, libucx-cu13" >&2; exit 2 ;;
  esac
done
[ ${#wanted[@]} -gt 0 ] || wanted=(nixl-cu13 libucx-cu13)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

fetch() {  # NAME FOLDER
  local platforms=() minor
  for minor in 17 24 27 28 31 34 35; do platforms+=(--platform "manylinux_2_${minor}_x86_64"); done
  python3 -m pip download -q --no-deps --only-binary=:all: --implementation cp --python-version "$python" \
    "${platforms[@]}" --platform manylinux2014_x86_64 -d "$2" "$1"
}

strip_all() {
  find "$1" -type f | while read -r file; do
    [ "$(head -c 4 "$file" | tr -d '\0')" != $'\x7fELF' ] || strip --strip-unneeded "$file"
  done
}

# Libraries beside the package that nothing that was kept needs.
drop_unneeded() {  # FOLDER LIBRARIES
  local name found=yes
  while [ -n "$found" ]; do
    found=""
    find "$1" -type f \( -name '*.so*' -o -perm -u+x \) -exec objdump -p {} + 2>/dev/null |
      awk '$1 == "NEEDED" { print $2 }' | sort -u >"$work/needed"
    for name in "$2"/*.so*; do
      if ! grep -qxF "${name##*/}" "$work/needed"; then rm "$name"; found=yes; fi
    done
  done
}

prune_nixl-cu13() {
  local plugins=.nixl_cu13.mesonpy.libs/plugins
  rm -rf nixl_ep_cu13 nixl_cu13.scripts nixl_cu13.libs/nixl nixl_cu13-*.data
  find $plugins -type f ! -name 'libplugin_UCX.so' ! -name 'libplugin_POSIX.so' -delete
  find nixl_cu13.libs/ucx -name '*.la' -delete
  rm -f nixl_cu13.libs/ucx/libucx_perftest* .nixl_cu13.mesonpy.libs/{libnixl_test_utils,libobj_utils,libnixl_capi}.so
  drop_unneeded . nixl_cu13.libs
}

prune_libucx-cu13() {
  local lib=libucx/lib file
  find . \( -name '*.a' -o -name '*.la' \) -delete
  rm -rf $lib/cmake $lib/pkgconfig libucx/include libucx/share/ucx/examples libucx/bin/io_demo libucx/bin/ucx_read_profile
  # The name that programs and the loader of modules ask for is the one with a 0.
  for file in $lib/*.so.0 $lib/ucx/*.so.0; do rm -f "${file%.0}" "$file".0.0; done
}

check_nixl-cu13() {
  if [ "$python" != "$here" ]; then
    echo "  not imported: it is for Python $python, this is $here" >&2
    return
  fi
  python3 -m pip install -q --root-user-action ignore --target "$work/numpy" numpy
  NIXL_LOG_LEVEL=ERROR PYTHONPATH=$1:$work/numpy python3 - <<'CHECK'
import nixl_cu13._api as api
agent = api.nixl_agent("check", api.nixl_agent_config(backends=["UCX"]))
assert "UCX" in agent.get_plugin_list(), agent.get_plugin_list()
CHECK
}

check_libucx-cu13() {
  local port=$((20000 + $$ % 20000)) server
  local -x LD_LIBRARY_PATH=$1/libucx/lib UCX_TLS=posix,cma UCX_WARN_UNUSED_ENV_VARS=n
  "$1/libucx/bin/ucx_perftest" -p "$port" >/dev/null &
  server=$!
  # The server says nothing when it listens: ask again until it does.
  for _ in $(seq 100); do
    if "$1/libucx/bin/ucx_perftest" 127.0.0.1 -p "$port" -t ucp_put_bw -s 4096 -n 1000 >/dev/null 2>"$work/said"; then
      wait "$server"
      return
    fi
    kill -0 "$server" 2>/dev/null || break
    sleep 0.05
  done
  kill "$server" 2>/dev/null || true
  cat "$work/said" >&2
  return 1
}

for name in "${wanted[@]}"; do
  if [ -n "$originals" ]; then
    originals_here=$originals
  else
    originals_here=$work/originals
    fetch "$name" "$originals_here"
  fi
  wheel=$(find "$originals_here" -name "${name//-/_}-*.whl" | head -n 1)
  [ -n "$wheel" ] || { echo "pack.sh: no wheel of $name in $originals_here" >&2; exit 2; }
  tree=$work/$name
  mkdir "$tree"
  python3 -m zipfile -e "$wheel" "$tree"
  (cd "$tree" && "prune_$name")
  strip_all "$tree"
  copy=$out/${wheel##*/}
  rm -f "$out/${name//-/_}"-*.whl
  # A wheel is a zip with a list of what is in it, the list itself last.
  python3 - "$tree" "$copy" <<'PACK'
import base64, hashlib, os, sys, zipfile
tree, copy = sys.argv[1:]
files = sorted(os.path.relpath(os.path.join(folder, name), tree) for folder, _, names in os.walk(tree) for name in names)
record = next(name for name in files if name.endswith(".dist-info/RECORD"))
lines = []
with zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
    def add(name, data):
        entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
        entry.external_attr = (0o100755 if data[:4] == b"\x7fELF" else 0o100644) << 16  # pip keeps the bits of regular files
        wheel.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
    for name in files:
        if name == record:
            continue
        with open(os.path.join(tree, name), "rb") as file:
            data = file.read()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}")
        add(name, data)
    add(record, "".join(line + "\n" for line in [*lines, f"{record},,"]).encode())
PACK
  bytes=$(stat -c %s "$copy")
  echo "$copy: $((bytes >> 10)) KiB, was $(($(stat -c %s "$wheel") >> 10)) KiB"
  if [ "$bytes" -gt "$limit" ]; then
    echo "pack.sh: larger than $((limit >> 20)) MiB; the largest files:" >&2
    find "$tree" -type f -printf '%s %P\n' | sort -rn | head -n 5 >&2
    exit 1
  fi
  installed=$work/installed-$name
  if [ "$python" = "$here" ] || [ "$name" = libucx-cu13 ]; then
    python3 -m pip install -q --root-user-action ignore --no-index --no-deps --target "$installed" "$copy"
  fi
  "check_$name" "$installed" || { echo "pack.sh: $copy does not load" >&2; exit 1; }
done
