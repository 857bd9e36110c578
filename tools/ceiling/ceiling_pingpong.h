// SPDX-License-Identifier: Apache-2.0
//
// The raw limit of latency: two processes copy a message into each other's memory and raise a flag,
// in turns. Thread-safe: no state.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "tools/ceiling/ceiling_copy.h"
#include "tools/measure/bench_samples.h"

namespace peerlane::bench {

struct RawGame {
  // My source to the other's destination; round after round the next one.
  std::vector<RawPiece> out;
  bool stamp = true;  // write the round's number into the source first, so that it changes
  CopyWay way = CopyWay::kMemcpy;
  pid_t other = 0;                          // the other process, for CopyWay::kKernel
  std::atomic<uint64_t>* mine = nullptr;    // the flag I wait for
  std::atomic<uint64_t>* theirs = nullptr;  // the flag I raise
  uint64_t base = 0;                        // both flags' value before the first round
};

// Rounds with a clock around every `perSample` of them: half a round trip per iteration. The first
// `warmup` rounds are not kept.
Status rawServe(const RawGame& game, uint64_t warmup, uint64_t samples, uint64_t perSample,
                Samples& out);
// The other side, for warmup + samples * perSample rounds.
Status rawReturn(const RawGame& game, uint64_t rounds);

}  // namespace peerlane::bench
