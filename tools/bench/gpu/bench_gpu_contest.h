// SPDX-License-Identifier: Apache-2.0
//
// One row of a GPU benchmark: ours and the raw limit in turns between the same two processes, over
// the same bytes, with new contents verified in eight of the rounds. External synchronization
// required.
#pragma once

#include "tools/bench/gpu/bench_gpu_pair.h"
#include "tools/measure/bench_samples.h"

namespace peerlane::bench {

struct GpuContestSettings {
  bool ours = true;
  bool ceiling = true;
  bool checkAll = false;
  uint64_t rounds = 0;  // 0: by size
  uint64_t warmup = 3;
};

struct GpuOutcome {
  Outcome outcome;  // microseconds per message; only `ceiling` where ours was not asked for
  Samples posting;  // of the host in our calls, per message
  Samples rawPosting;
  std::string noCeiling;  // why there is none, although it was asked for
};

// After an error the pair can be used again, unless it is kPeerLost.
Result<GpuOutcome> runGpuContest(GpuPair& pair, const GpuCase& what,
                                 const GpuContestSettings& settings);

}  // namespace peerlane::bench
