// SPDX-License-Identifier: Apache-2.0
//
// PostingLock: the lock that a thread holds while it puts work on streams, and so for as long as
// the driver blocks that thread. A thread that must not wait that long leaves its work under the
// lock to the thread that holds it. Thread-safe. The analysis of locks sees one lock, not the mutex
// inside.
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
  // Does the work that other threads left to the holder, after unlocking the mutex. Every post
  // calls it, so it costs only one atomic operation more than a mutex.
  void unlock() PEERLANE_RELEASE() PEERLANE_NO_THREAD_SAFETY_ANALYSIS {
    mutex_.unlock();
    workOff();
  }
  // Does `work` under the lock without waiting for its holder: either this thread does it at once,
  // or the holder does it in unlock(). `work` must be short and must take no lock of this kind.
  void soon(std::function<void()> work);

 private:
  // No work is lost: a thread first leaves its work and then tries the lock, and the holder first
  // unlocks and then looks for work. So if that thread finds the lock taken, the holder sees the
  // work.
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
