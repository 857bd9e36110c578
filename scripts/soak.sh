#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The long versions of the tests, in parts: all suites beside four busy loops, tests made to be long, the concurrent tests
# over and over, and fuzzing in earnest. All of them take about two hours on two cores.
# Usage: soak.sh [PART...] (default: all, in the order below). Stops at the first part that fails.
#   build     what the others need; always first, unless BUILT=yes says that it is there
#   busy      every suite, under the sanitizers too, while four loops keep the cores busy
#   long      tests marked soak, in the release build and under the address sanitizer
#   repeat    the concurrent tests ROUNDS times (default 5), in the release build and under the thread sanitizer
#   fuzz      each target for MINUTES (default 2)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly all_parts=(busy long repeat fuzz) rounds=${ROUNDS:-5} minutes=${MINUTES:-2}
busy=()
trap '[ ${#busy[@]} -eq 0 ] || kill "${busy[@]}"' EXIT

part_build() {
  scripts/test.sh configure build asan-build tsan-build fuzz-build
}

part_busy() {
  for _ in 1 2 3 4; do
    while :; do :; done &
    busy+=($!)
  done
  # As many at once as there are loops: otherwise the loops get most of the time.
  JOBS=4 MINUTES=240 scripts/test.sh suite asan-suite tsan-suite torture
  kill "${busy[@]}"
  busy=()
}

part_long() { MINUTES=240 scripts/test.sh long asan-long; }

part_repeat() {
  local round
  for ((round = 1; round <= rounds; ++round)); do
    echo "-- round $round of $rounds"
    MINUTES=240 scripts/test.sh concurrent tsan-suite
  done
}

part_fuzz() { scripts/fuzz.sh $((minutes * 60)); }

parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=("${all_parts[@]}")
for part in "${parts[@]}"; do
  if ! declare -F "part_$part" >/dev/null; then
    echo "there is no part '$part'; there are: build ${all_parts[*]}" >&2
    exit 2
  fi
done
[ "${parts[0]}" = build ] || [ "${BUILT:-}" = yes ] || parts=(build "${parts[@]}")
for part in "${parts[@]}"; do
  begin=$SECONDS
  echo "== soak: $part"
  "part_$part"
  echo "soak: $part took $((SECONDS - begin)) s"
done
echo "soak: no failure"
