// SPDX-License-Identifier: Apache-2.0
//
// PendingTransfers: what was posted and has not ended, and the first error of what has.
// Thread-safe.
#pragma once

#include <chrono>
#include <deque>
#include <mutex>

#include "peerlane/channel/transfer.h"

namespace peerlane::p2p {

class PendingTransfers {
 public:
  void add(Transfer transfer);
  // Of those that have ended so far. It stays until it is taken.
  Status firstError();
  Status takeFirstError();
  // Waits for all that were added before, but those that are part of a CUDA graph; kTimeout, saying
  // for how long and how many. How they ended is firstError().
  Status wait(std::chrono::nanoseconds timeout);
  void cancel();
  // The same, also for all that is added later.
  void close();

 private:
  void reap();

  std::mutex mutex_;
  std::deque<Transfer> transfers_;  // under mutex_, as all below
  size_t reapAt_ = 64;              // when so many are there, all of them are looked at
  Status first_;
  bool closed_ = false;
};

}  // namespace peerlane::p2p
