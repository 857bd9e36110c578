// SPDX-License-Identifier: Apache-2.0
//
// DescriptorArena: device memory for the descriptors of plans: pieces of one block that exists from
// the start, and cudaMalloc for descriptors that are too large or come when the block is full.
// Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <utility>

#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/memory/cuda/cuda_mapping.h"

namespace peerlane::stream {

class DescriptorArena;

// Owns a piece of device memory; the destructor returns it to its source. Requires: no work that
// reads it is queued.
class DescriptorMemory {
 public:
  DescriptorMemory(std::byte* data, std::shared_ptr<DescriptorArena> arena, size_t bytes,
                   bool inBlock)
      : data_(data), arena_(std::move(arena)), bytes_(bytes), inBlock_(inBlock) {}
  ~DescriptorMemory();
  DescriptorMemory(const DescriptorMemory&) = delete;
  DescriptorMemory& operator=(const DescriptorMemory&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* const data_;
  const std::shared_ptr<DescriptorArena> arena_;
  const size_t bytes_;
  const bool inBlock_;  // else from cudaMalloc
};

class DescriptorArena : public std::enable_shared_from_this<DescriptorArena> {
 public:
  // Hands out [offset, end) of `memory`, which is the GPU's.
  DescriptorArena(std::shared_ptr<const cuda::PrimaryContext> gpu,
                  std::shared_ptr<CudaMapping> memory, size_t offset)
      : gpu_(std::move(gpu)),
        memory_(std::move(memory)),
        free_{{offset, memory_->bytes() - offset}} {}

  // With the GPU current.
  Result<std::unique_ptr<DescriptorMemory>> take(size_t bytes);
  // Takes from the block alone; null when the block has no such piece.
  std::unique_ptr<DescriptorMemory> tryTake(size_t bytes);

 private:
  static size_t wholeOf(size_t bytes);
  friend class DescriptorMemory;
  void giveBack(size_t offset, size_t bytes);

  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
  const std::shared_ptr<CudaMapping> memory_;
  Mutex mutex_;
  std::map<size_t, size_t> free_ PEERLANE_GUARDED_BY(mutex_);  // offset, bytes
};

}  // namespace peerlane::stream
