// SPDX-License-Identifier: Apache-2.0
//
// Many pieces by send and receive on streams, one way, several lists one after the other: as one
// message (sendList) or as a message each (sendBatch). Compared with puts of the same pieces by the
// gather kernel, which know beforehand where the bytes go. External synchronization required.
#pragma once

#include "tools/bench/gpu/bench_gpu_pair.h"

namespace peerlane::bench {

struct GpuListTimes {
  Samples ours;  // microseconds per list
  Samples ceiling;
  uint64_t wrong = 0;
};

// `samples`: 0 for as many as are enough.
Result<GpuListTimes> measureGpuLists(GpuPair& pair, uint64_t pieces, uint64_t pieceBytes,
                                     bool asOne, bool withCeiling, uint64_t samples = 0);

// Room in each region for such a list.
uint64_t gpuListBytes(uint64_t pieces, uint64_t pieceBytes);

// The child's part.
Status serveGpuLists(GpuSide& side, GpuPipe& pipe, const GpuList& request);

}  // namespace peerlane::bench
