// SPDX-License-Identifier: Apache-2.0
//
// PendingTransfers: what was posted and has not ended, and the first error of what has.
// Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>

#include "peerlane/channel/transfer/transfer.h"

namespace peerlane::p2p {

// Which call of the user's it is of: "receive" 70 is the 70th. One call may be several transfers.
struct PostName {
  const char* call = "";
  uint64_t number = 0;
};

class PendingTransfers {
 public:
  void add(Transfer transfer, PostName name);
  // Of those that have ended so far, named by its call. It stays until it is taken.
  Status firstError();
  Status takeFirstError();
  // Waits for all that were added before, but those that are part of a CUDA graph; kTimeout, saying
  // for how long and how many. How they ended is firstError().
  Status wait(std::chrono::nanoseconds timeout);
  void cancel();
  // The same, also for all that is added later.
  void close();

 private:
  struct Pending {
    Transfer transfer;
    PostName name;
  };
  void reap();
  void ended(const Pending& pending);

  std::mutex mutex_;
  std::deque<Pending> transfers_;  // under mutex_, as all below
  size_t reapAt_ = 64;             // when so many are there, all of them are looked at
  Status first_;
  bool closed_ = false;
};

}  // namespace peerlane::p2p
