// SPDX-License-Identifier: Apache-2.0
//
// `peerlane bench port`: port channels (exchanges, copies by the proxy, signals, requests, the cost
// of an idle proxy) between two processes on two GPUs, or two threads on one; each row in turns
// with the same pattern by raw loads, stores and copies. Confined to one thread.
#pragma once

#include <iosfwd>

#include "tools/bench/sides/bench_options.h"

namespace peerlane::bench {

// The table goes to `out`. Errors: kInvalidArgument (options), kNotSupported (no CUDA in this
// build, no driver, no GPU), those of the library, kCorrupt when a byte was wrong or a call failed.
Status runPortBench(const BenchOptions& options, std::ostream& out);

}  // namespace peerlane::bench
