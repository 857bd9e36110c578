// SPDX-License-Identifier: Apache-2.0
//
// PinnedPool: host memory that a GPU reads and writes, in blocks of powers of two. The pool lends
// returned blocks again; it returns no memory to the system before its end, because that would wait
// for the whole GPU. Thread-safe, by a lock that no thread holds while it calls the driver.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/os/cuda.h"

namespace peerlane::stream {

struct PinnedBlock {
  std::byte* data = nullptr;
  uint32_t order = 0;  // of its size: 2^order bytes
};

class PinnedPool {
 public:
  // `gpu` pins and unpins; all GPUs can reach the pinned memory.
  explicit PinnedPool(std::shared_ptr<const cuda::PrimaryContext> gpu) : gpu_(std::move(gpu)) {}
  // Gives the memory to the reclaimer. Requires: no work that uses a block is queued.
  ~PinnedPool();
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;

  // Pins memory ahead of its use, for blocks of up to 2^order bytes.
  Status prepare(uint32_t order);
  // A block of at least `bytes`, aligned to 4 KiB. It may contain bytes of an earlier use.
  Result<PinnedBlock> take(size_t bytes);
  void giveBack(const PinnedBlock& block) {
    const MutexLock lock(mutex_);
    free_[block.order].push_back(block.data);
  }

 private:
  std::byte* tryTake(uint32_t order);

  static constexpr uint32_t kLeastOrder = 12;
  static constexpr uint32_t kPieceOrder = 20;
  static constexpr uint32_t kOrders = 48;
  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
  Mutex mutex_;
  std::array<std::vector<std::byte*>, kOrders> free_ PEERLANE_GUARDED_BY(mutex_);
  std::vector<std::byte*> owned_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane::stream
