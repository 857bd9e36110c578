// SPDX-License-Identifier: Apache-2.0
//
// One whole benchmark: two processes are made, an operation is measured between them, the table is
// printed and the report written. Confined to one thread.
#pragma once

#include <iosfwd>

#include "tools/bench/sides/bench_options.h"

namespace peerlane::bench {

// The table goes to `out`. Errors: those of the library, kCorrupt when a byte was wrong, kInternal
// when a ratio is above BenchReport::kMaxRatio (the JSON is written all the same).
Status runBench(BenchOptions options, std::ostream& out);

}  // namespace peerlane::bench
