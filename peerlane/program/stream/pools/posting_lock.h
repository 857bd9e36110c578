// SPDX-License-Identifier: Apache-2.0
//
// PostingLock: a lock that is held while work is put on streams, and so for as long as the driver
// stops who puts it there. Who must not wait for that leaves what is to be done under the lock to
// whoever holds it. Thread-safe. The analysis of locks sees one lock, not the mutex inside.
#pragma once

#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "peerlane/core/mutex.h"

namespace peerlane::stream {

class PEERLANE_CAPABILITY("mutex") PostingLock {
 public:
  void lock() PEERLANE_ACQUIRE() PEERLANE_NO_THREAD_SAFETY_ANALYSIS { mutex_.lock(); }
  // Does what was left to it before. Every post comes here: one atomic operation more than a mutex.
  void unlock() PEERLANE_RELEASE() PEERLANE_NO_THREAD_SAFETY_ANALYSIS {
    mutex_.unlock();
    workOff();
  }
  // Does `work` under the lock, and never waits for its holder: at once, or the holder does it.
  // `work` is short, and takes no lock of this kind.
  void soon(std::function<void()> work);

 private:
  // Whoever leaves something, then finds the lock taken, is seen by who unlocks it then, and looks
  // for what was left after that: each does the one before the other.
  void workOff() {
    while (waiting_.fetch_add(0, std::memory_order_seq_cst) != 0)
      if (!tryWork()) return;
  }
  bool tryWork();

  Mutex mutex_;
  std::atomic<size_t> waiting_{0};  // how many are in left_
  Mutex leftMutex_;
  std::vector<std::function<void()>> left_ PEERLANE_GUARDED_BY(leftMutex_);
};

// Holds the lock as long as it lives.
class PEERLANE_SCOPED_CAPABILITY PostingGuard {
 public:
  explicit PostingGuard(PostingLock& lock) PEERLANE_ACQUIRE(lock) : lock_(lock) { lock_.lock(); }
  ~PostingGuard() PEERLANE_RELEASE() { lock_.unlock(); }
  PostingGuard(const PostingGuard&) = delete;
  PostingGuard& operator=(const PostingGuard&) = delete;

 private:
  PostingLock& lock_;
};

}  // namespace peerlane::stream
