#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The long versions: tests marked SOAK, the suite of the fast tests over and over, all suites on a machine that is
# busy with something else, and fuzzing in earnest.
# Usage: soak.sh [MINUTES_OF_FUZZING_PER_TARGET] (default 10)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly minutes=${1:-10}
busy=()
trap '[ ${#busy[@]} -eq 0 ] || kill "${busy[@]}"' EXIT

for preset in release asan tsan fuzz; do
  cmake --preset "$preset" --log-level=WARNING >/dev/null
done
cmake --build --preset release --target all
cmake --build --preset asan --target all
cmake --build --preset tsan --target concurrent_tests
cmake --build --preset fuzz --target fuzz_targets

echo "== tests marked SOAK"
ctest --test-dir build -L soak --output-on-failure
ctest --test-dir build-asan -L soak --output-on-failure
echo "== concurrent tests, 20 times, release and under the thread sanitizer"
ctest --test-dir build -L concurrent -LE soak --repeat until-fail:20 --output-on-failure
ctest --test-dir build-tsan -L concurrent -LE soak --repeat until-fail:20 --output-on-failure
echo "== all suites beside four busy loops"
for _ in 1 2 3 4; do
  while :; do :; done &
  busy+=($!)
done
BUDGETS=report scripts/test.sh suite asan-suite tsan-suite torture
kill "${busy[@]}"
busy=()
echo "== fuzzing, $minutes minutes each"
scripts/fuzz.sh $((minutes * 60))
echo "soak: no failure"
