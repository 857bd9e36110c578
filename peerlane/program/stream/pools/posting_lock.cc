// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/pools/posting_lock.h"

namespace peerlane::stream {

void PostingLock::soon(std::function<void()> work) {
  {
    const MutexLock left(leftMutex_);
    left_.push_back(std::move(work));
    waiting_.fetch_add(1, std::memory_order_seq_cst);
  }
  workOff();
}

// False: another thread holds the lock, and that thread will look for the work.
bool PostingLock::tryWork() {
  if (!mutex_.tryLock()) return false;
  std::vector<std::function<void()>> work;
  {
    const MutexLock left(leftMutex_);
    work.swap(left_);
    waiting_.fetch_sub(work.size(), std::memory_order_seq_cst);
  }
  for (const auto& each : work) each();
  mutex_.unlock();
  return true;
}

}  // namespace peerlane::stream
