#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the GPU tests of a bundle: what one, two or more GPUs allow; the rest says which it needs.
# Usage: run_gpu_tests.sh [--shard I/N] [NAME...] (names as in gpu_tests.txt; default: all).
# The last line is "N passed, N failed, N skipped".
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
if [ "${1:-}" = --shard ]; then
  export GTEST_SHARD_INDEX=$((${2%/*} - 1)) GTEST_TOTAL_SHARDS=${2#*/}
  shift 2
fi
names=("$@")
[ ${#names[@]} -gt 0 ] || mapfile -t names < <(grep -v '^$' gpu_tests.txt)
export NCCL_NVLS_ENABLE=0
passed=0 failed=0 skipped=0
for name in "${names[@]}"; do
  log=$(mktemp)
  timeout 400 "bin/$name" >"$log" 2>&1
  status=$?
  good=$(grep -c '^\[       OK \]' "$log")
  bad=$(grep -c '^\[  FAILED  \].*ms)$' "$log")
  away=$(grep -c '^\[  SKIPPED \].*ms)$' "$log")
  [ "$status" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
  [ "$bad" -eq 0 ] || grep -v '^\[ RUN\|^\[       OK' "$log" | head -n 120
  grep 'needs [0-9]* GPUs\|needs fabric handles' "$log" | sort -u | sed 's/^/SKIPPED: /'
  echo "$name: $good passed, $bad failed, $away skipped"
  grep -E '^\[       OK .*\([0-9]{4,} ms\)$' "$log" | sed 's/^/  slow: /'
  passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + away))
  rm -f "$log"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
