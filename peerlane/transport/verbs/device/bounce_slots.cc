// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/device/bounce_slots.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

namespace peerlane {

void BounceSlots::Unmap::operator()(std::byte* memory) const {
  (void)::munmap(memory, uint64_t{kSlots} * kSlotBytes);
}

Result<uint32_t> BounceSlots::take() {
  const MutexLock lock(mutex_);
  if (!memory_) PEERLANE_RETURN_IF_ERROR(make());
  hasRefused_ |= free_.empty();
  if (free_.empty())
    return Status(Code::kTryAgain, "all " + std::to_string(kSlots) + " bounce slots are in use");
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

bool BounceSlots::giveBack(uint32_t slot) {
  const MutexLock lock(mutex_);
  free_.push_back(slot);
  return std::exchange(hasRefused_, false);
}

Status BounceSlots::make() {
  constexpr uint64_t kBytes = uint64_t{kSlots} * kSlotBytes;
  void* const mapped =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return Status::system(errno, "memory for bounce slots");
  std::unique_ptr<std::byte, Unmap> memory(static_cast<std::byte*>(mapped));
  PEERLANE_ASSIGN(registered_, domain_->add(memory.get(), kBytes, IBV_ACCESS_LOCAL_WRITE,
                                            reinterpret_cast<uintptr_t>(memory.get())));
  memory_ = std::move(memory);
  free_.reserve(kSlots);
  for (uint32_t slot = 0; slot < kSlots; ++slot) free_.push_back(slot);
  return Status::ok();
}

}  // namespace peerlane
