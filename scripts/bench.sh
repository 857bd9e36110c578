#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every operation of the benchmark with the machine's raw limit measured in the same run; the reports land in
# build/bench/*.json. Wants an idle machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p build/bench
status=0
for operation in put get sendrecv batch pingpong connect; do
  echo "== $operation"
  build/bin/peerlane bench "$operation" --ceiling --json "build/bench/$operation.json" || status=1
done
exit "$status"
