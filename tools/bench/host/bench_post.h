// SPDX-License-Identifier: Apache-2.0
//
// `bench post`: one plan of one descriptor posted again and again, with one flush per 64 posts, as
// ucp_put_bw does with a window of 64: the same source, the same destination, straight out of the
// cache. It measures the posting path, not the memory. Confined to one thread.
#pragma once

#include "tools/bench/sides/bench_options.h"
#include "tools/bench/sides/bench_pair.h"
#include "tools/bench/sides/bench_report.h"

namespace peerlane::bench {

Status benchPost(BenchPair& pair, const BenchOptions& options, BenchReport& report);

}  // namespace peerlane::bench
