// SPDX-License-Identifier: Apache-2.0
//
// PendingTransfers: the transfers that were posted and have not ended, and the first error of those
// that have. Thread-safe. Owner: a communicator, or a host stream.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>

#include "peerlane/channel/transfer/transfer.h"
#include "peerlane/core/mutex.h"

namespace peerlane::p2p {

// The call of the user that posted a transfer: "receive" 70 is the 70th. One call may post several
// transfers.
struct PostName {
  const char* call = "";
  uint64_t number = 0;
};

class PendingTransfers {
 public:
  void add(Transfer transfer, PostName name);
  // Of the transfers that have ended so far, with the name of its call. It stays until
  // takeFirstError().
  Status firstError();
  Status takeFirstError();
  // Waits for all transfers that were added before, except those that are part of a CUDA graph.
  // kTimeout says how long it waited and how many have not ended. OK says that they have ended; how
  // they ended is firstError().
  Status wait(std::chrono::nanoseconds timeout);
  void cancel();
  // Cancels all transfers, also those that are added later.
  void close();

 private:
  struct Pending {
    Transfer transfer;
    PostName name;
  };
  void reap() PEERLANE_REQUIRES(mutex_);
  void noteEnd(const Pending& pending) PEERLANE_REQUIRES(mutex_);

  Mutex mutex_;
  std::deque<Pending> transfers_ PEERLANE_GUARDED_BY(mutex_);
  // With so many, add() drops all that have ended.
  size_t reapAt_ PEERLANE_GUARDED_BY(mutex_) = 64;
  Status first_ PEERLANE_GUARDED_BY(mutex_);
  bool closed_ PEERLANE_GUARDED_BY(mutex_) = false;
};

}  // namespace peerlane::p2p
