// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/pools/descriptor_arena.h"

#include <algorithm>
#include <iterator>

#include "peerlane/memory/cuda/cuda_reclaimer.h"
#include "peerlane/os/cuda_driver.h"

namespace peerlane::stream {
namespace {

constexpr size_t kAlignment = 256;

}  // namespace

DescriptorMemory::~DescriptorMemory() {
  if (inBlock_) {
    arena_->giveBack(static_cast<size_t>(data_ - arena_->memory_->data()), bytes_);
    return;
  }
  CudaReclaimer::instance().add(arena_->gpu_, [data = data_] { (void)cudaFree(data); });
}

size_t DescriptorArena::wholeOf(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::unique_ptr<DescriptorMemory> DescriptorArena::tryTake(size_t bytes) {
  const size_t whole = wholeOf(bytes);
  const MutexLock lock(mutex_);
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [whole](const auto& range) { return range.second >= whole; });
  if (found == free_.end()) return nullptr;
  const auto [offset, available] = *found;
  free_.erase(found);
  if (available > whole) free_[offset + whole] = available - whole;
  return std::make_unique<DescriptorMemory>(memory_->data() + offset, shared_from_this(), whole,
                                            /*inBlock=*/true);
}

Result<std::unique_ptr<DescriptorMemory>> DescriptorArena::take(size_t bytes) {
  if (auto taken = tryTake(bytes)) return taken;
  void* made = nullptr;
  const size_t whole = wholeOf(bytes);
  PEERLANE_RETURN_IF_ERROR(cuda::check(cudaMalloc(&made, whole), "cudaMalloc"));
  return std::make_unique<DescriptorMemory>(static_cast<std::byte*>(made), shared_from_this(),
                                            whole, /*inBlock=*/false);
}

void DescriptorArena::giveBack(size_t offset, size_t bytes) {
  const MutexLock lock(mutex_);
  auto at = free_.emplace(offset, bytes).first;
  if (const auto next = std::next(at); next != free_.end() && offset + bytes == next->first) {
    at->second += next->second;
    free_.erase(next);
  }
  if (at == free_.begin()) return;
  const auto before = std::prev(at);
  if (before->first + before->second != at->first) return;
  before->second += at->second;
  free_.erase(at);
}

}  // namespace peerlane::stream
