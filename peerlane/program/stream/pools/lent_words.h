// SPDX-License-Identifier: Apache-2.0
//
// LentWords: words in pinned host memory that streams and CPUs read and write, lent one by one and
// taken back when the last post that used them has ended. Thread-safe, by a lock of its own: who
// enqueues work holds the executor's for as long as a launch takes.
#pragma once

#include <atomic>
#include <utility>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/program/device/device_executor.h"
#include "peerlane/program/stream/pools/pinned_pool.h"

namespace peerlane::stream {

class LentWords {
 public:
  // `pool` outlives it.
  explicit LentWords(PinnedPool& pool) : pool_(pool) {}
  // With 0 in it; null when more() must be called first.
  std::atomic<uint64_t>* tryLend();
  // With the GPU current and every capture relaxed.
  Status more();
  // Lent again once `after` has ended.
  void takeBack(std::atomic<uint64_t>* word, const DevicePost& after) {
    const MutexLock lock(mutex_);
    used_.emplace_back(word, after);
  }

 private:
  PinnedPool& pool_;
  Mutex mutex_;
  std::vector<std::atomic<uint64_t>*> free_ PEERLANE_GUARDED_BY(mutex_);
  std::vector<std::pair<std::atomic<uint64_t>*, DevicePost>> used_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane::stream
