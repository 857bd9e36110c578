#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every check and every test, in stages, cheap ones first; stops at the first stage that fails and names it.
# Usage: test.sh [STAGE...] (default: all, in the order below). The last line is always "N passed, N failed":
# tests of each run, and one for each stage that holds no tests. PEERLANE_* variables of the caller are dropped.
# The guest of stage rdma boots as soon as its programs are built and runs beside the stages that compile and check, never
# beside a suite. Each stage's seconds go to build/ci_minutes.json: who adds a stage says what it costs.
# JOBS: how many test programs run at once (default: two for each core, because many of them wait).
# MINUTES: the limit for all of it (default 80).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly root=$PWD
readonly fuzz_seconds=${FUZZ_SECONDS:-5}
readonly most_minutes=${MINUTES:-80}
readonly ledger=$root/build/ci_tests.json
for name in "${!PEERLANE_@}"; do unset "$name"; done
# `timeout` ends all that runs here.
if [ -z "${WITHIN_MINUTES:-}" ]; then
  at_terminal=()
  [ ! -t 0 ] || at_terminal=(--foreground)  # so that Ctrl-C and a question for a password reach it
  WITHIN_MINUTES=yes exec timeout "${at_terminal[@]}" --kill-after=60 "${most_minutes}m" "scripts/test.sh" "$@"
fi
unset WITHIN_MINUTES

readonly all_stages=(packages scripts format layers shape clocks configure headers build rdma-begin tidy asan-build tsan-build
                     fuzz-build install rdma suite nixl asan-suite asan-nixl tsan-suite fuzz torture)
# Those that run only when they are named.
readonly more_stages=(rdma-long long asan-long concurrent coverage)
passed=0
failed=0
skipped=0
names=()
seconds=()

finish() {
  echo
  scripts/run_suite.py --report "$ledger"
  echo "where the time went"
  local number
  for number in "${!names[@]}"; do printf '%6d s  %s\n' "${seconds[number]}" "${names[number]}"; done
  echo "total $((SECONDS / 60)) min $((SECONDS % 60)) s"
  {
    echo "{"
    for number in "${!names[@]}"; do echo "  \"${names[number]}\": ${seconds[number]},"; done
    echo "  \"total\": $SECONDS"
    echo "}"
  } >build/ci_minutes.json
  [ "$skipped" -eq 0 ] || echo "$skipped tests skipped themselves (allowed by .ci/allowed_skips)"
  [ -z "${broken:-}" ] || echo "FAILED in stage '$broken'; again: scripts/test.sh $broken"
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
  exit
}

# Only what was said last matters when a build or check goes well.
quietly() {
  local log
  log=$(mktemp)
  if "$@" >"$log" 2>&1; then
    tail -n 1 "$log"
    rm -f "$log"
    return 0
  fi
  tail -n 300 "$log"
  rm -f "$log"
  return 1
}

build() {  # PRESET TARGET...
  local preset=$1
  shift
  quietly cmake --preset "$preset" && quietly cmake --build --preset "$preset" --target "$@"
}

# Adds up the counts of a suite. The last line of what it said has them, if it came that far.
count() {  # FOLDER STATUS LAST_LINE
  local good=0 bad=1 away=0 status=$2
  [[ "$3" =~ ^[0-9]+\ [0-9]+\ [0-9]+$ ]] && read -r good bad away <<<"$3"
  [ "$status" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
  [ $((good + bad + away)) -gt 0 ] || bad=1
  echo "$good passed, $bad failed, $away skipped in $1"
  passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + away))
  counted=yes
  [ "$bad" -eq 0 ]
}

# Runs the tests of a build folder. Arguments after the folder choose tests.
suite() {
  local folder=$1 status said
  shift
  local choice=("$@")
  [ $# -gt 0 ] || choice=(-LE 'soak|torture|guest|nixl')
  # Sanitized programs want a predictable address space; not every container lets us ask for one.
  local fixed=()
  if [ "$folder" = build-tsan ] && setarch -R true 2>/dev/null; then fixed=(setarch -R); fi
  said=$(mktemp)
  "${fixed[@]}" scripts/run_suite.py "$folder" --ledger "$ledger" ${JOBS:+--jobs "$JOBS"} -- "${choice[@]}" | tee "$said" | sed '$d'
  status=${PIPESTATUS[0]}
  count "$folder" "$status" "$(tail -n 1 "$said")"
  status=$?
  rm -f "$said"
  return "$status"
}

stage_packages() { [ "${PACKAGES:-}" = skip ] || scripts/install_packages.sh build test; }
stage_scripts() {
  local script
  for script in scripts/*.sh tests/guest/*.sh .ci/run; do bash -n "$script" || return 1; done
  quietly python3 -m py_compile scripts/*.py scripts/suite/*.py tests/scripts/*.py tests/debian/*.py tests/guest/*.py tests/guest/inside/*.py tests/tools/doctor/*.py
}
stage_format() { scripts/format.sh; }
stage_layers() { quietly scripts/check_layers.py; }
stage_shape() { quietly scripts/shape.py; }
stage_clocks() { quietly scripts/clocks.py; }
# The generated sources have to be there before anything parses the tree.
stage_configure() { quietly cmake --preset release && quietly cmake --build --preset release --target generated; }
stage_headers() { scripts/static_checks.py headers build; }
stage_tidy() { scripts/static_checks.py tidy build; }
stage_build() { build release all; }
stage_suite() { suite build; }
# Inside of NIXL's wheel, which comes from Python's index.
nixl_suite() {
  NIXL_WHEEL=$(scripts/nixl_wheel.sh) || return 1
  export NIXL_WHEEL
  suite "$1" -L '^nixl$'
}
stage_nixl() { nixl_suite build; }
stage_install() { quietly scripts/check_install.sh; }
stage_asan-build() { build asan all; }
# hwloc loses memory when a recording cannot be read, and so does one of its plugins, which is unloaded by the time of the
# report and cannot be named: it stays away.
asan_suite() {
  HWLOC_PLUGINS_PATH=/nonexistent LSAN_OPTIONS=suppressions=$root/scripts/leaks_of_others.txt:print_suppressions=0 \
    ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 \
    suite build-asan "$@"
}
stage_asan-suite() { asan_suite; }
stage_asan-nixl() { nixl_suite build-asan; }
stage_tsan-build() { build tsan concurrent_tests; }
stage_tsan-suite() {
  TSAN_OPTIONS=second_deadlock_stack=1:die_after_fork=0:history_size=4:print_suppressions=0 suite build-tsan -L concurrent -LE 'soak|torture|nixl'
}
# Made to be long, and the concurrent ones alone: for soak.sh.
stage_long() { suite build -L soak; }
stage_asan-long() { asan_suite -L soak; }
stage_concurrent() { suite build -L concurrent -LE 'soak|torture|nixl'; }
stage_fuzz-build() { build fuzz fuzz_targets; }
stage_fuzz() { scripts/fuzz.sh "$fuzz_seconds"; }
stage_torture() { suite build -L torture; }
# In an emulated machine (docs/guest.md). Its image is made before: that takes a network, and says so.
in_guests() { build release guest_programs && quietly tests/guest/guest.py image && suite build -L "$1"; }
# The other half of stage rdma, in a process of its own: what it says and how it ended are files.
readonly guest_log=$root/build/guest_suite.log
stage_rdma-begin() {
  rm -f "$guest_log"*
  set -m  # a process group of its own, so that clear_away can end all of it
  {
    passed=0 failed=0 skipped=0
    in_guests '^guest$' || [ "$failed" -gt 0 ] || failed=1
    echo "$passed $failed $skipped" >"$guest_log.counts"
  } >"$guest_log" 2>&1 </dev/null &
  guest=$!
  set +m
}
# Waits for that, or does it where it has not begun.
stage_rdma() {
  if [ -z "${guest:-}" ]; then in_guests '^guest$'; return; fi
  wait "$guest"
  guest=""
  cat "$guest_log"
  count guests 0 "$(cat "$guest_log.counts" 2>/dev/null)"
}
stage_rdma-long() { in_guests '^guest_long$'; }

# How much of the library the tests execute, line by line: on demand, for there is no threshold.
stage_coverage() {
  local report counts=$root/build-coverage/counts
  build coverage all || return 1
  rm -rf "$counts"
  # Tests kill processes, also while these write their counts, and every later one then complains of that file.
  GCOV_PREFIX=$root/build-coverage GCOV_ERROR_FILE=$root/build-coverage/counts_lost.txt HWLOC_PLUGINS_PATH=/nonexistent \
    suite build-coverage || return 1
  gather_counts || return 1
  report=$(gcovr -j "$(nproc)" --root . --object-directory build-coverage --filter peerlane/ \
    --exclude-throw-branches --txt build-coverage/coverage.txt --print-summary) || return 1
  echo "$(grep -E '^lines|^branches' <<<"$report" | paste -sd' ') (each file: build-coverage/coverage.txt)"
}
# Objects come out of the compiler cache, so the programs write counts under the path of the clone that compiled
# (/counts/#some#clone#build-coverage#peerlane#...): each goes beside the notes of its object, where gcovr looks.
gather_counts() {
  local count name
  find build-coverage -name '*.gcda' -not -path 'build-coverage/counts/*' -delete
  for count in build-coverage/counts/*.gcda; do
    name=${count##*#build-coverage#}
    mv "$count" "build-coverage/${name//#//}" || return 1
  done
}

stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=("${all_stages[@]}")
for stage in "${stages[@]}"; do
  if ! declare -F "stage_$stage" >/dev/null; then
    echo "there is no stage '$stage'; there are: ${all_stages[*]} ${more_stages[*]}" >&2
    exit 2
  fi
done

# Ends a guest that nobody will wait for.
clear_away() { [ -z "${guest:-}" ] || kill -TERM -- "-$guest" 2>/dev/null; }
trap 'echo "interrupted, or $most_minutes minutes are over"; broken=$stage; failed=$((failed + 1)); names+=("$stage") seconds+=($((SECONDS - begin)));
  clear_away; finish' INT TERM
mkdir -p build
rm -f "$ledger"
for stage in "${stages[@]}"; do
  echo "== $stage"
  begin=$SECONDS
  counted=""
  status=0
  "stage_$stage" || status=1
  names+=("$stage") seconds+=($((SECONDS - begin)))
  if [ -z "$counted" ]; then
    if [ "$status" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  fi
  if [ "$status" -ne 0 ]; then
    broken=$stage
    break
  fi
done
clear_away
finish
