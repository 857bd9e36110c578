// SPDX-License-Identifier: Apache-2.0
//
// CudaPart: the cuda_ipc link's own part of a grant of GPU memory. docs/wire.md, "Grants". Plain
// value, free of CUDA's headers and part of every build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane {

struct CudaPart {
  static constexpr uint32_t kMostHandleBytes = 4096;  // of chunk_runs.h, the longest

  uint64_t address = 0;       // of the region in the owner's process; used in the same process only
  uint64_t offset = 0;        // where the region begins in its allocation
  uint64_t backingBytes = 0;  // of the allocation, which the importer must map as a whole
  uint64_t identity = 0;      // of the allocation in its process; never used twice there
  // The allocation outlives the regions in it: an importer may keep it mapped for the next region.
  bool isKept = false;
  // By legacy or fabric handle, and of a pool (cuda_pools.h); in chunks: the sizes (chunk_runs.h).
  std::vector<std::byte> handle{};

  // Requires: a handle of at most kMostHandleBytes.
  std::vector<std::byte> encode() const;
  // Errors: kCorrupt (truncated, bytes too many, a field outside its range).
  static Result<CudaPart> decode(std::span<const std::byte> blob);
};

}  // namespace peerlane
