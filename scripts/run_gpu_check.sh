#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a small part of a bundle's GPU tests under compute-sanitizer: memcheck over transfers and kernels, racecheck
# (shared memory) over kernels. Ends with 1 when a tool finds anything or a test fails. The last lines are a summary.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
command -v compute-sanitizer >/dev/null || { echo "compute-sanitizer is not on PATH (CUDA toolkit)" >&2; exit 2; }
summary=() bad=0

check() {  # TOOL PROGRAM FILTER
  local log status
  log=$(mktemp)
  # Answers such as "peer access is already enabled" are no errors of ours: --report-api-errors no.
  timeout 200 compute-sanitizer --tool "$1" --target-processes all --report-api-errors no --error-exitcode 9 \
    "bin/$2" --gtest_filter="$3" --gtest_brief=1 >"$log" 2>&1
  status=$?
  local tests errors
  tests=$(grep -oE '[0-9]+ tests? from .* ran' "$log" | tail -1)
  errors=$(sed -nE 's/.*(ERROR SUMMARY: |RACECHECK SUMMARY: )([0-9]+).*/\2/p' "$log" | awk '{ sum += $1 } END { print sum + 0 }')
  summary+=("$1 $2 ($3): ${tests:-did not run}, $errors errors, exit $status")
  if [ "$status" -ne 0 ]; then
    bad=1
    grep -v '^\[ RUN' "$log" | head -n 60
  fi
  rm -f "$log"
}

check memcheck gpu_transfer_tests 'DeviceTransfer.IndexedBlocksArrive:DeviceTransfer.ScatteredListsArrive:DeviceTransfer.AMiss*'
check memcheck gpu_memory_tests 'DeviceMemory.ContextsOfOneProcess'
check memcheck gpu_kernel_tests '*OnOneGpu*-*4GiB*'
check racecheck gpu_kernel_tests '*BlocksByIndex*OnOneGpu*:*MessageKernel*OnOneGpu*-*4GiB*'
printf '%s\n' "${summary[@]}"
exit "$bad"
