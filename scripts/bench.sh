#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the library must reach, each with the machine's raw limit measured in the same run; the report lands in
# bench/results/host.json (or the file named as the first argument). Wants an idle machine. Every row runs even
# when one before it failed. bench/peers compares with other systems, bench/compare.py two builds of this one.
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

while read -r line; do
  # shellcheck disable=SC2086  # a list of words
  [ -z "$line" ] || [ "${line:0:1}" = "#" ] || measure $line </dev/null
done <bench/rows_host.txt
echo "report: $report"
exit "$status"
