#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every check and every test, in stages, cheap ones first; stops at the first stage that fails and names it.
# Usage: test.sh [STAGE...] (default: all, in the order below). The last line is always "N passed, N failed":
# tests of each run, and one for each stage that holds no tests. PEERLANE_* variables of the caller are dropped.
# Stages have budgets of time (below); BUDGETS=report says who is over without failing, for a machine that is busy.
# JOBS: how many tests run at once (default: one for each core).
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
readonly root=$PWD
readonly fuzz_seconds=${FUZZ_SECONDS:-5}
for name in "${!PEERLANE_@}"; do unset "$name"; done

readonly all_stages=(packages scripts format layers prose shape configure headers build suite nixl install rdma tidy
                     asan-build asan-suite asan-nixl coverage tsan-build tsan-suite fuzz-build fuzz torture)
# Those that run only when they are named.
readonly more_stages=(rdma-long)
# Minutes that stages take together on two cores: when the caches know nearly all of the tree, and when they do not.
# Machines of two cores differ by a factor of up to 5 (seen: the same tests under tsan in 220 and in 1034 s), so stages fail
# at five times that: what grew without need shows in the report of a quick machine, what hangs or explodes fails on all.
readonly most_times=5
readonly budgets=(
  "checks   5  9 packages scripts format layers prose shape configure headers tidy"
  "release 12 24 build suite nixl install"
  "asan    10 24 asan-build asan-suite asan-nixl coverage"
  "tsan     6 16 tsan-build tsan-suite"
  "fuzz     4 10 fuzz-build fuzz"
  "torture  1  1 torture"
  "rdma     3  5 rdma"
  "rdma-long 12 15 rdma-long"
)
declare -A spent=() cold=()
passed=0
failed=0
skipped=0
times=()
coverage=""

finish() {
  echo
  echo "where the time went"
  printf '%s\n' "${times[@]}"
  local line name warm unfilled stages
  for line in "${budgets[@]}"; do
    read -r name warm unfilled stages <<<"$line"
    [ -n "${spent[$name]:-}" ] || continue
    printf '%6d s  of %2d min for %s%s\n' "${spent[$name]}" "$([ -n "${cold[$name]:-}" ] && echo "$unfilled" || echo "$warm")" \
      "$name" "$([ -z "${cold[$name]:-}" ] || echo ', cold caches')"
  done
  echo "total $((SECONDS / 60)) min $((SECONDS % 60)) s"
  [ -z "$coverage" ] || echo "coverage: $coverage"
  [ "$skipped" -eq 0 ] || echo "$skipped tests skipped themselves (allowed by .ci/allowed_skips)"
  [ -z "${broken:-}" ] || echo "FAILED in stage '$broken'; again: scripts/test.sh $broken"
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
  exit
}

# Calls of the compiler that its cache answered, and those that it could not.
cache_counts() {
  ccache --print-stats 2>/dev/null | awk '
    /^(direct|preprocessed)_cache_hit/ { hits += $2 } /^cache_miss/ { misses += $2 } END { print hits + 0, misses + 0 }'
}

# Adds a stage's seconds to its budget, and says whether that holds. A fifth of misses makes it a cold run.
within_budget() {  # STAGE SECONDS HITS_BEFORE MISSES_BEFORE
  local line name warm unfilled stages minutes hits misses
  for line in "${budgets[@]}"; do
    read -r name warm unfilled stages <<<"$line"
    [[ " $stages " = *" $1 "* ]] || continue
    spent[$name]=$((${spent[$name]:-0} + $2))
    read -r hits misses < <(cache_counts)
    hits=$((hits - $3)) misses=$((misses - $4))
    [ $((misses * 5)) -le $((hits + misses)) ] || cold[$name]=1
    minutes=$warm
    [ -z "${cold[$name]:-}" ] || minutes=$unfilled
    [ "${spent[$name]}" -gt $((minutes * 60 * most_times)) ] || return 0
    echo "$name: ${spent[$name]} s by the end of stage '$1'; the budget is $minutes min, and more than $most_times times that is too much"
    [ "${BUDGETS:-}" = report ]
    return
  done
  echo "stage '$1' has no budget"
  return 1
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

# Runs ctest in a build folder and adds up what the tests said. Arguments after the folder choose tests.
suite() {
  local folder=$1 counts status
  shift
  local choice=("$@")
  [ $# -gt 0 ] || choice=(-LE 'soak|torture|guest')
  rm -rf "$folder/test-results" "$folder/junit.xml"
  # Sanitized programs want a predictable address space; not every container lets us ask for one.
  local fixed=()
  if [ "$folder" = build-tsan ] && setarch -R true 2>/dev/null; then fixed=(setarch -R); fi
  "${fixed[@]}" ctest --test-dir "$folder" -j "${JOBS:-$(nproc)}" --no-tests=error --output-on-failure \
    --output-junit "$root/$folder/junit.xml" "${choice[@]}" | grep -v '^ *[0-9]*/[0-9]* Test.*Passed\|^ *Start'
  status=${PIPESTATUS[0]}
  counts=$(scripts/test_summary.py "$folder/junit.xml" "$folder/test-results" .ci/allowed_skips) || status=1
  sed '$d' <<<"$counts"
  local good=0 bad=1 away=0
  read -r good bad away < <(tail -n 1 <<<"$counts") || status=1
  if ! [[ "$good $bad $away" =~ ^[0-9]+\ [0-9]+\ [0-9]+$ ]]; then
    good=0 bad=1 away=0 status=1
  fi
  [ "$status" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
  echo "$good passed, $bad failed, $away skipped in $folder"
  passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + away))
  counted=yes
  return "$status"
}

stage_packages() { [ "${PACKAGES:-}" = skip ] || scripts/install_packages.sh build test; }
stage_scripts() {
  local script
  for script in scripts/*.sh tests/guest/*.sh .ci/run; do bash -n "$script" || return 1; done
  quietly python3 -m py_compile scripts/*.py tests/debian/*.py tests/guest/*.py tests/guest/inside/*.py tests/tools/doctor/*.py
}
stage_format() { scripts/format.sh; }
stage_layers() { quietly scripts/check_layers.py; }
stage_prose() { quietly scripts/prose.py; }
stage_shape() { quietly scripts/shape.py; }
# The generated sources have to be there before anything parses the tree.
stage_configure() { quietly cmake --preset release && quietly cmake --build --preset release --target generated; }
stage_headers() { scripts/static_checks.py headers build; }
stage_tidy() {
  local said fresh all
  said=$(scripts/static_checks.py tidy build) || { echo "$said"; return 1; }
  echo "$said"
  read -r all fresh < <(sed -n 's/^clang-tidy: \([0-9]*\) sources, \([0-9]*\) looked at now.*/\1 \2/p' <<<"$said")
  [ $((fresh * 5)) -le "$all" ] || cold[checks]=1
}
stage_build() { build release all; }
stage_suite() { suite build; }
# Inside of NIXL's wheel, which comes from Python's index. Arguments after the folder choose tests; `under`, of the caller,
# is what they run under.
nixl_tests() {
  local wheel said status=0
  wheel=$(scripts/nixl_wheel.sh) || return 1
  said=$(mktemp)
  "${under[@]}" tests/integrations/nixl/nixl_tests.py "$wheel" "$@" >"$said" 2>&1 || status=1
  if [ "$status" -eq 0 ]; then tail -n 1 "$said"; else tail -n 300 "$said"; fi
  local good=0 bad=1
  read -r good bad < <(sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed$/\1 \2/p' "$said") || status=1
  rm -f "$said"
  # A runner that died has said nothing, or not how it ended.
  [[ "$good $bad" =~ ^[0-9]+\ [0-9]+$ ]] || good=0 bad=1
  [ "$status" -eq 0 ] || [ "$bad" -gt 0 ] || bad=1
  passed=$((passed + good)) failed=$((failed + bad))
  counted=yes
  return "$status"
}
stage_nixl() {
  local under=()
  nixl_tests build
}
stage_install() { quietly scripts/check_install.sh; }
stage_asan-build() { build asan-coverage all; }
stage_asan-suite() {
  rm -rf build-asan/counts build-asan/counts_lost.txt
  # hwloc loses memory when a recording cannot be read, and so does one of its plugins, which is unloaded by
  # the time of the report and cannot be named: it stays away. Tests kill processes, also while these write their counts,
  # and every later one then complains of that file: not on the standard error that tests look at.
  GCOV_PREFIX=$root/build-asan GCOV_ERROR_FILE=$root/build-asan/counts_lost.txt HWLOC_PLUGINS_PATH=/nonexistent LSAN_OPTIONS=suppressions=$root/scripts/leaks_of_others.txt:print_suppressions=0 \
    ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1 suite build-asan
}
# With memory of GPUs, where there are some in software. The interpreter is not sanitized, and loses memory of its own.
stage_asan-nixl() {
  local gpus=$root/build-asan/lib/libpeerlane_software_gpu.so
  local under=(env LD_PRELOAD="$(g++ -print-file-name=libasan.so):$(g++ -print-file-name=libubsan.so)"
    ASAN_OPTIONS=detect_leaks=0:strict_string_checks=1 GCOV_PREFIX="$root/build-asan"
    GCOV_ERROR_FILE="$root/build-asan/counts_lost.txt")
  [ ! -e "$gpus" ] || under+=(SOFTWARE_GPUS=2 NIXL_TEST_CUDA="$gpus")
  nixl_tests build-asan test_gpu test_memory test_notifications test_transfers test_traps.Settings test_verbs
}
# Objects come out of the compiler cache, so the programs write counts under the path of the clone that compiled
# (/counts/#some#clone#build-asan#peerlane#...): each goes beside the notes of its object, where gcovr looks.
gather_counts() {
  local count name
  find build-asan -name '*.gcda' -not -path 'build-asan/counts/*' -delete
  for count in build-asan/counts/*.gcda; do
    name=${count##*#build-asan#}
    mv "$count" "build-asan/${name//#//}" || return 1
  done
}
stage_coverage() {
  local report
  gather_counts || return 1
  report=$(gcovr -j "$(nproc)" --root . --object-directory build-asan --filter peerlane/ \
    --exclude-throw-branches --txt build-asan/coverage.txt --print-summary) || return 1
  coverage=$(grep -E '^lines|^branches' <<<"$report" | paste -sd' ')
  echo "$coverage (each file: build-asan/coverage.txt)"
  [ ! -s build-asan/counts_lost.txt ] || echo "some counts were lost with processes that tests killed: build-asan/counts_lost.txt"
}
stage_tsan-build() { build tsan concurrent_tests; }
stage_tsan-suite() {
  TSAN_OPTIONS=second_deadlock_stack=1:die_after_fork=0:history_size=4 suite build-tsan -L concurrent -LE 'soak|torture'
}
stage_fuzz-build() { build fuzz fuzz_targets; }
stage_fuzz() { scripts/fuzz.sh "$fuzz_seconds"; }
stage_torture() { suite build -L torture; }
# In an emulated machine (docs/guest.md). Its image is made before: that takes a network, and says so.
in_guests() { build release guest_programs && quietly tests/guest/guest.py image && suite build -L "$1"; }
stage_rdma() { in_guests '^guest$'; }
stage_rdma-long() { in_guests '^guest_long$'; }

stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=("${all_stages[@]}")
for stage in "${stages[@]}"; do
  if ! declare -F "stage_$stage" >/dev/null; then
    echo "there is no stage '$stage'; there are: ${all_stages[*]} ${more_stages[*]}" >&2
    exit 2
  fi
done

trap 'echo "interrupted"; broken=$stage; failed=$((failed + 1)); finish' INT TERM
for stage in "${stages[@]}"; do
  echo "== $stage"
  begin=$SECONDS
  read -r hits misses < <(cache_counts)
  counted=""
  status=0
  "stage_$stage" || status=1
  took=$((SECONDS - begin))
  times+=("$(printf '%6d s  %s' "$took" "$stage")")
  if [ -z "$counted" ]; then
    if [ "$status" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  fi
  if ! within_budget "$stage" "$took" "$hits" "$misses"; then
    [ "$status" -ne 0 ] || failed=$((failed + 1))
    status=1
  fi
  if [ "$status" -ne 0 ]; then
    broken=$stage
    break
  fi
done
finish
