#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every libFuzzer target of build-fuzz for some seconds. Usage: fuzz.sh SECONDS [PATTERN].
# Inputs that break a target are kept in build-fuzz/found/; put them into the corpus with the fix.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly seconds=${1:?how many seconds for each target}
readonly pattern=${2:-.}

run_one() {  # BINARY CORPUS SECONDS
  local name=${1##*/} work
  work=build-fuzz/found/$name
  mkdir -p "$work/corpus"
  if "$1" -max_total_time="$3" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
      -artifact_prefix="$work/" "$work/corpus" "$2" >"$work/log" 2>&1; then
    echo "$name: $(awk '/number_of_executed_units/ { print $2 }' "$work/log") inputs, no crash"
  else
    tail -n 60 "$work/log"
    echo "$name: BROKEN, the input is in $work"
    return 1
  fi
}
export -f run_one

mapfile -t targets < <(grep -E -- "$pattern" build-fuzz/fuzz_targets.txt || true)
if [ ${#targets[@]} -eq 0 ]; then
  echo "no fuzz target matches '$pattern': nothing would be tested" >&2
  exit 1
fi
printf '%s\n' "${targets[@]}" |
  xargs -P "$(nproc)" -L 1 bash -c 'run_one "$1" "$2" '"$seconds" run_one
