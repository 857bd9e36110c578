// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/device/control_block.h"

#include <sys/mman.h>
#include <atomic>

#include <cerrno>
#include <cstring>

namespace peerlane {
namespace {

constexpr size_t kSlabBytes = 64 * 1024;

}  // namespace

ControlBlock::~ControlBlock() {
  if (data_ == nullptr) return;
  const MutexLock lock(blocks_->mutex_);
  blocks_->free_.push_back({data_, local_, remote_});
}

void ControlBlocks::Unmap::operator()(std::byte* slab) const {
  (void)::munmap(slab, kSlabBytes);
}

void ControlBlock::clear() const {
  for (const uint64_t word : {control_block::kTaken, control_block::kPolls})
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(data_ + word))
        .store(0, std::memory_order_release);
}

Result<ControlBlock> ControlBlocks::take() {
  const MutexLock lock(mutex_);
  if (free_.empty()) PEERLANE_RETURN_IF_ERROR(grow());
  const Free free = free_.back();
  free_.pop_back();
  std::memset(free.data, 0, control_block::kBytes);
  ControlBlock block;
  block.blocks_ = shared_from_this();
  block.data_ = free.data;
  block.local_ = free.local;
  block.remote_ = free.remote;
  return block;
}

Status ControlBlocks::grow() {
  void* const mapped =
      ::mmap(nullptr, kSlabBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return Status::system(errno, "memory for the control of verbs links");
  Slab slab{.memory = std::unique_ptr<std::byte, Unmap>(static_cast<std::byte*>(mapped)),
            .registered = {}};
  std::byte* const data = slab.memory.get();
  constexpr int kRights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  PEERLANE_ASSIGN(slab.registered,
                  domain_->add(data, kSlabBytes, kRights, reinterpret_cast<uintptr_t>(data)));
  for (size_t at = 0; at + control_block::kBytes <= kSlabBytes; at += control_block::kBytes)
    free_.push_back({data + at, slab.registered.local(), slab.registered.remote()});
  slabs_.push_back(std::move(slab));
  return Status::ok();
}

}  // namespace peerlane
