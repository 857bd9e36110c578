// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/pools/pinned_pool.h"

#include <algorithm>
#include <bit>
#include <string>

#include "peerlane/memory/cuda/cuda_reclaimer.h"
#include "peerlane/os/cuda_driver.h"

namespace peerlane::stream {

PinnedPool::~PinnedPool() {
  if (owned_.empty()) return;
  CudaReclaimer::instance().add(gpu_, [owned = std::move(owned_)] {
    for (std::byte* block : owned) (void)cudaFreeHost(block);
  });
}

Result<PinnedBlock> PinnedPool::take(size_t bytes) {
  const auto order =
      std::max<uint32_t>(kLeastOrder, static_cast<uint32_t>(std::bit_width(bytes - 1)));
  if (bytes == 0 || order >= kOrders)
    return Status(Code::kInvalidArgument, std::to_string(bytes) + " bytes of pinned host memory");
  for (;;) {
    if (std::byte* const data = tryTake(order)) return PinnedBlock{data, order};
    // Another thread may take from it first.
    PEERLANE_RETURN_IF_ERROR(prepare(std::max(order, kPieceOrder)));
  }
}

// Takes the smallest free block that is large enough and halves it until it fits; null: there is
// none.
std::byte* PinnedPool::tryTake(uint32_t order) {
  const MutexLock lock(mutex_);
  uint32_t larger = order;
  while (larger < free_.size() && free_[larger].empty()) ++larger;
  if (larger == free_.size()) return nullptr;
  std::byte* const data = free_[larger].back();
  free_[larger].pop_back();
  while (larger > order) {
    --larger;
    free_[larger].push_back(data + (size_t{1} << larger));
  }
  return data;
}

Status PinnedPool::prepare(uint32_t order) {
  void* made = nullptr;
  PEERLANE_RETURN_IF_ERROR(cuda::check(
      cudaHostAlloc(&made, size_t{1} << order, cudaHostAllocPortable), "cudaHostAlloc"));
  const MutexLock lock(mutex_);
  owned_.push_back(static_cast<std::byte*>(made));
  free_[order].push_back(static_cast<std::byte*>(made));
  return Status::ok();
}

}  // namespace peerlane::stream
