// SPDX-License-Identifier: Apache-2.0
//
// How every benchmark begins a row: the contest with the rounds that the options ask for, and the
// row with what is known of it before it is measured. Thread-safe: there is no state.
#pragma once

#include "tools/bench/sides/bench_options.h"
#include "tools/bench/sides/bench_pair.h"
#include "tools/bench/sides/bench_report.h"
#include "tools/measure/bench_samples.h"

namespace peerlane::bench {

// `bytes`: moved by one round. The caller has yet to say what a round does.
inline Contest contestFor(const BenchOptions& options, uint64_t bytes) {
  Contest contest;
  contest.withCeiling = options.ceiling;
  contest.checkAll = options.check;
  contest.warmup = options.warmup;
  contest.rounds = samplesFor(options, bytes);
  contest.limit = limitFor(options);
  return contest;
}

// `bytes`: of one iteration.
inline BenchRow rowFor(const BenchPair& pair, const BenchOptions& options, uint64_t bytes) {
  BenchRow row;
  row.operation = options.operation;
  row.memory = options.memory;
  row.link = pair.link();
  row.engine = pair.engine();
  row.bytes = bytes;
  row.blocks = options.isScattered() ? options.blocks : 1;
  return row;
}

}  // namespace peerlane::bench
