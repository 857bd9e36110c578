// SPDX-License-Identifier: Apache-2.0
//
// `bench cancel`: how long a put and a get that an agent carries (tcp, ring) take from cancel() to
// their end, a moment after they were posted. Confined to one thread.
#pragma once

#include "tools/bench/sides/bench_options.h"
#include "tools/bench/sides/bench_pair.h"
#include "tools/bench/sides/bench_report.h"

namespace peerlane::bench {

Status benchCancel(BenchPair& pair, const BenchOptions& options, BenchReport& report);

}  // namespace peerlane::bench
