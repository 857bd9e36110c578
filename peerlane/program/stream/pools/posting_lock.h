// SPDX-License-Identifier: Apache-2.0
//
// PostingLock: a lock that is held while work is put on streams, and so for as long as the driver
// stops who puts it there. Who must not wait for that leaves what is to be done under the lock to
// whoever holds it. Thread-safe.
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
  // Does what was left to it before. Every post comes here: one atomic operation more than a mutex.
  void unlock() {
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

  std::mutex mutex_;
  std::atomic<size_t> waiting_{0};  // how many are in left_
  std::mutex leftMutex_;
  std::vector<std::function<void()>> left_;  // under leftMutex_
};

}  // namespace peerlane::stream
