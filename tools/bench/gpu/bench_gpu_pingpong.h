// SPDX-License-Identifier: Apache-2.0
//
// `bench pingpong` on GPUs: a put with a signal, and the wait for the answer, both on streams;
// against naive kernels that store and spin. Round trips. External synchronization required.
#pragma once

#include "tools/bench/gpu/bench_gpu_pair.h"

namespace peerlane::bench {

struct GpuPingpongTimes {
  Samples ours;  // microseconds per round trip
  Samples ceiling;
  uint64_t wrong = 0;
};
Result<GpuPingpongTimes> measureGpuPingpong(GpuPair& pair, uint64_t bytes, bool withOurs,
                                            bool withCeiling);

// The child's part.
Status serveGpuPingpong(GpuSide& side, GpuPipe& pipe, const GpuPingpong& request);

}  // namespace peerlane::bench
