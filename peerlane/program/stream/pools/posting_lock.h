// SPDX-License-Identifier: Apache-2.0
//
// PostingLock: the lock that a thread holds while it puts work on streams, and so for as long as
// the driver blocks that thread. A thread that must not wait that long leaves its work under the
// lock to the thread that holds it. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

namespace peerlane::stream {

class PostingLock {
 public:
  void lock() { mutex_.lock(); }
  // Does the work that other threads left to the holder, after unlocking the mutex. Every post
  // calls it, so it costs only one atomic operation more than a mutex.
  void unlock() {
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

  std::mutex mutex_;
  std::atomic<size_t> waiting_{0};  // how many are in left_
  std::mutex leftMutex_;
  std::vector<std::function<void()>> left_;  // under leftMutex_
};

}  // namespace peerlane::stream
