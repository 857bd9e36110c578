// SPDX-License-Identifier: Apache-2.0
//
// Send and receive on streams, to and fro: one by one, or several rounds in a graph; against naive
// kernels of the same pattern, which know beforehand where the bytes go. Round trips. External
// synchronization required.
#pragma once

#include "tools/bench/gpu/bench_gpu_pingpong.h"

namespace peerlane::bench {

inline constexpr uint64_t kGpuRoundsPerGraph = 20;

// `samples`: 0 for as many as are enough.
Result<GpuPingpongTimes> measureGpuMessages(GpuPair& pair, uint64_t bytes, bool inGraph,
                                            bool withOurs, uint64_t samples = 0,
                                            Protocol protocol = Protocol::kAuto);

// The child's part.
Status serveGpuMessages(GpuSide& side, GpuPipe& pipe, const GpuPingpong& request);

}  // namespace peerlane::bench
