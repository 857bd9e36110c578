// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/freed_list.h"

#include "peerlane/core/counted_list.h"
#include "peerlane/memory/region_table.h"

namespace peerlane {

void FreedList::add(RegionFrees& freed) noexcept {
  freed.nextFreed_ = added_.load(std::memory_order_relaxed);
  while (!added_.compare_exchange_weak(freed.nextFreed_, &freed, std::memory_order_release,
                                       std::memory_order_relaxed)) {
  }
  signalEventFd(bell_.get());
}

// What is linked is alive: its end removes it, and waits for the lock.
void FreedList::collect() {
  RegionFrees* freed = added_.exchange(nullptr, std::memory_order_acquire);
  for (; freed != nullptr; freed = freed->nextFreed_) known_.insert(freed);
}

void FreedList::remove(RegionFrees& freed) {
  const MutexLock lock(mutex_);
  collect();
  known_.erase(&freed);
}

std::vector<std::shared_ptr<RegionRecord>> FreedList::take() {
  std::vector<std::shared_ptr<RegionRecord>> taken;
  const MutexLock lock(mutex_);
  collect();
  Steps::add(known_.size());
  taken.reserve(known_.size());
  for (RegionFrees* const freed : known_)
    if (auto record = freed->region_.weak_from_this().lock()) taken.push_back(std::move(record));
  known_.clear();
  return taken;
}

}  // namespace peerlane
