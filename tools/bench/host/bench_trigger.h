// SPDX-License-Identifier: Apache-2.0
//
// `bench trigger`: what a triggered queue costs: a put with a signal, posted, committed and
// executed, in batches of 1 and 20, beside the same put of a plan, and that beside the raw stores;
// the way of a bell to the server and back; and the CPU time of a server that has nothing to do.
// Confined to one thread.
#pragma once

#include "tools/bench/sides/bench_options.h"
#include "tools/bench/sides/bench_pair.h"
#include "tools/bench/sides/bench_report.h"

namespace peerlane::bench {

Status benchTrigger(BenchPair& pair, const BenchOptions& options, BenchReport& report);

}  // namespace peerlane::bench
