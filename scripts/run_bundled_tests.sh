#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of a bundle where it lies. Usage: run_tests.sh [PATTERN]; GoogleTest's own variables
# (GTEST_FILTER, ...) work as ever. Needs bash, grep, sed and timeout. The last line is "N passed, N failed".
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 2
passed=0
failed=0
skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

number() {  # how many tests the summary line "[  $1  ] N test..." names
  sed -n "s/^\[  $1 *\] \([0-9]*\) tests\{0,1\}[.,].*/\1/p" "$log" | tail -n 1
}

while read -r name settings; do
  grep -qE -- "${1:-.}" <<<"$name" || continue
  nic=()
  for each in $settings; do nic+=("${each/=lib\//=$PWD/lib/}"); done
  if [ -d "corpus/$name" ]; then
    timeout 300 "bin/$name" "corpus/$name" >"$log" 2>&1
  else
    env "${nic[@]}" timeout 300 "bin/$name" >"$log" 2>&1
  fi
  status=$?
  good=$(number PASSED)
  away=$(number SKIPPED)
  bad=$(number FAILED)
  if [ -d "corpus/$name" ]; then
    [ "$status" -ne 0 ] || good=1
  fi
  if [ "$status" -ne 0 ] && [ -z "$bad" ]; then bad=1; fi
  passed=$((passed + ${good:-0})) failed=$((failed + ${bad:-0})) skipped=$((skipped + ${away:-0}))
  echo "$name: ${good:-0} passed, ${bad:-0} failed, ${away:-0} skipped"
  if [ "${bad:-0}" -gt 0 ]; then
    echo "-- $name ended with $status"
    tail -n 60 "$log"
  fi
done <tests.txt

[ "$skipped" -eq 0 ] || echo "$skipped tests skipped themselves"
if [ $((passed + failed + skipped)) -eq 0 ]; then
  echo "no test ran"
  failed=1
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
