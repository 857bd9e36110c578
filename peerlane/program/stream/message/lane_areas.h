// SPDX-License-Identifier: Apache-2.0
//
// LaneAreas: pieces of exportable device memory that peers write to, several to a block of 2 MiB,
// which is the smallest size that CUDA can export. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/memory_provider.h"
#include "peerlane/os/cuda.h"
#include "peerlane/program/stream/pools/descriptor_arena.h"

namespace peerlane::stream {

class LaneAreas {
 public:
  explicit LaneAreas(std::shared_ptr<const cuda::PrimaryContext> gpu) : gpu_(std::move(gpu)) {}
  // With the GPU current. Not zeroed. kOutOfMemory.
  Result<std::unique_ptr<Allocation>> take(size_t bytes);

 private:
  static constexpr size_t kBlockBytes = size_t{2} << 20;
  // Lives as long as LaneAreas, so peers may keep it mapped from one communicator to the next.
  struct Block {
    std::shared_ptr<CudaMapping> memory;
    std::shared_ptr<DescriptorArena> arena;
    // The exported handle, which peers import. LaneAreas asks the driver for it once, because other
    // threads may hold the driver's locks for long.
    std::shared_ptr<const cuda::PrimaryContext> gpu;
    Device device;
    Fd descriptor;
    uint64_t identity = 0;
  };
  class Area;

  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
  Mutex mutex_;
  std::vector<std::shared_ptr<const Block>> blocks_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane::stream
