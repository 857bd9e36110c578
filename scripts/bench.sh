#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the library must reach, each with the machine's raw limit measured in the same run; the report lands in
# bench/results/host.json (or the file named as the first argument). Wants an idle machine. Every row runs even
# when one before it failed. bench/peers compares with other systems.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly report=${1:-bench/results/host.json}
readonly program=${BENCH_PROGRAM:-build/bin/peerlane}
mkdir -p "$(dirname "$report")"
rm -f "$report"
status=0

measure() {
  "$program" bench "$@" --ceiling --json "$report" --append || status=1
  echo
}

for memory in mapped private; do
  for direction in put get; do
    measure "$direction" -b 64M -e 64M --memory "$memory"
  done
done
for direction in put get; do
  measure "$direction" --blocks 128 --block 512K
  measure "$direction" --blocks 16384 --block 4K
  measure "$direction" --blocks 16384 --block 4K --indexed
done
measure pingpong -b 8 -e 4K -f 512
measure post -b 8 -e 4K -f 512
measure connect
measure sendrecv
measure batch --blocks 128 --block 512K
# Further sizes, for the curve.
measure put
measure get
echo "report: $report"
exit "$status"
