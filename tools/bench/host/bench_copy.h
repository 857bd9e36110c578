// SPDX-License-Identifier: Apache-2.0
//
// `bench put` and `bench get`: one-sided transfers, contiguous, scattered or by fresh block
// numbers, against a raw copy of the same blocks between the same pages. Confined to one thread.
#pragma once

#include "tools/bench/sides/bench_options.h"
#include "tools/bench/sides/bench_pair.h"
#include "tools/bench/sides/bench_report.h"

namespace peerlane::bench {

// How much region the sweep needs.
uint64_t copyRegionBytes(const BenchOptions& options);
Status benchCopy(BenchPair& pair, const BenchOptions& options, BenchReport& report);

}  // namespace peerlane::bench
