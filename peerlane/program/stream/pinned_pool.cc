// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/pinned_pool.h"

#include <algorithm>
#include <bit>
#include <string>

#include "peerlane/memory/cuda_reclaimer.h"
#include "peerlane/os/cuda_driver.h"

namespace peerlane::stream {

PinnedPool::~PinnedPool() {
  if (owned_.empty()) return;
  CudaReclaimer::instance().add([owned = std::move(owned_)] {
    for (std::byte* block : owned)
      if (cudaFreeHost(block) != cudaSuccess) (void)cudaGetLastError();
  });
}

Result<PinnedBlock> PinnedPool::take(size_t bytes) {
  const auto order =
      std::max<uint32_t>(kLeastOrder, static_cast<uint32_t>(std::bit_width(bytes - 1)));
  if (bytes == 0 || order >= free_.size())
    return Status(Code::kInvalidArgument, std::to_string(bytes) + " bytes of pinned host memory");
  std::vector<std::byte*>& ready = free_[order];
  if (ready.empty()) {
    // Small blocks are cut from one larger piece: to pin memory costs tens of microseconds.
    constexpr uint32_t kPieceOrder = 20;
    const uint32_t piece = std::max(order, kPieceOrder);
    void* made = nullptr;
    PEERLANE_RETURN_IF_ERROR(cuda::check(
        cudaHostAlloc(&made, size_t{1} << piece, cudaHostAllocPortable), "cudaHostAlloc"));
    owned_.push_back(static_cast<std::byte*>(made));
    for (size_t offset = 0; offset < size_t{1} << piece; offset += size_t{1} << order)
      ready.push_back(static_cast<std::byte*>(made) + offset);
  }
  PinnedBlock block{ready.back(), order};
  ready.pop_back();
  return block;
}

}  // namespace peerlane::stream
