// SPDX-License-Identifier: Apache-2.0
//
// Byte patterns in GPU memory, written and verified by kernels: what byte_pattern is for host
// memory, but another sequence. Free of CUDA's headers; built only where there is CUDA. Enqueued on
// a cudaStream_t of the current device, not waited for. Any thread.
#pragma once

#include <cstdint>

#include "peerlane/core/status.h"

namespace peerlane::bench {

// Part of a destination that must hold the source's bytes from `sourceOffset` on. Kernels read
// lists of these in device memory.
struct GpuSpan {
  uint64_t offset = 0;
  uint64_t sourceOffset = 0;
  uint64_t bytes = 0;
};

// Loads the kernels on the current device.
Status loadGpuPatterns();
// Writes the first `bytes` bytes of the sequence of `seed`. Requires: 8-byte alignment.
Status fillGpuPattern(void* stream, void* data, uint64_t bytes, uint64_t seed);
// Adds to `wrong` (in device memory) how many bytes of the spans are not what the source held.
Status countGpuWrong(void* stream, const void* data, const GpuSpan* list, uint64_t count,
                     uint64_t seed, uint64_t* wrong);

}  // namespace peerlane::bench
