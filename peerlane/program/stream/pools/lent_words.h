// SPDX-License-Identifier: Apache-2.0
//
// LentWords: words in pinned host memory that streams and CPUs read and write. It lends them one by
// one, and lends a word again after the last post that used it has ended. Thread-safe, by a lock of
// its own, because a thread that enqueues work holds the executor's lock for as long as a launch
// takes.
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
  // A word with 0 in it; null when the caller must call more() first.
  std::atomic<uint64_t>* tryLend();
  // With the GPU current and every capture relaxed.
  Status more();
  // The word is lent again only after `after` has ended.
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
