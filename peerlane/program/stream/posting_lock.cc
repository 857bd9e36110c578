// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/posting_lock.h"

namespace peerlane::stream {

void PostingLock::lock() {
  mutex_.lock();
  // Waits for who works in soon().
  const std::lock_guard left(leftMutex_);
  isHeld_ = true;
}

void PostingLock::unlock() {
  for (;;) {
    std::vector<std::function<void()>> work;
    {
      const std::lock_guard left(leftMutex_);
      if (left_.empty()) {
        isHeld_ = false;
        break;
      }
      work.swap(left_);
    }
    for (const auto& each : work) each();
  }
  mutex_.unlock();
}

void PostingLock::soon(std::function<void()> work) {
  const std::lock_guard left(leftMutex_);
  if (isHeld_)
    left_.push_back(std::move(work));
  else
    work();
}

}  // namespace peerlane::stream
