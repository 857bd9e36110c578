// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/mappings/freed_list.h"

namespace peerlane {

void FreedList::add(Link& link) noexcept {
  link.next_ = added_.load(std::memory_order_relaxed);
  while (!added_.compare_exchange_weak(link.next_, &link, std::memory_order_release,
                                       std::memory_order_relaxed)) {
  }
  signalEventFd(bell_.get());
}

// What is linked is alive: its end removes it, and waits for the lock.
void FreedList::collect() {
  Link* link = added_.exchange(nullptr, std::memory_order_acquire);
  for (; link != nullptr; link = link->next_) known_.insert(link);
}

void FreedList::remove(Link& link) {
  const MutexLock lock(mutex_);
  collect();
  known_.erase(&link);
}

}  // namespace peerlane
