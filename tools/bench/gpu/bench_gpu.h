// SPDX-License-Identifier: Apache-2.0
//
// `peerlane bench --device cuda`: one operation, the whole table, the raw limits alone, or the
// thresholds of the engines, between two processes on two GPUs (or one). Confined to one thread.
#pragma once

#include <iosfwd>

#include "tools/bench/sides/bench_options.h"

namespace peerlane::bench {

// The table goes to `out`. Errors: kInvalidArgument (options), kNotSupported (no CUDA in this
// build, no driver, no GPU, an operation that GPUs do not have), those of the library, kCorrupt
// when a byte was wrong, kUnavailable when a listed machine's raw limits are too low (the JSON is
// written all the same).
Status runGpuBench(const BenchOptions& options, std::ostream& out);

}  // namespace peerlane::bench
