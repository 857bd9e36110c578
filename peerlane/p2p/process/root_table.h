// SPDX-License-Identifier: Apache-2.0
//
// RootTable: the roots that this process has made and that have not connected two sides yet, by
// their tickets. A call that connects with a root takes it, and puts it back or drops it at the
// end; another thread may cancel it at any time. Thread-safe. Owner: P2pProcess.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "peerlane/core/mutex.h"
#include "peerlane/p2p/process/process_contexts.h"
#include "peerlane/session/context/context.h"

namespace peerlane::p2p {

// `context`, `invitation` and `gpu` are constant; the rest belongs to the table and its lock.
struct Root {
  std::shared_ptr<Context> context;
  Invitation invitation;
  OptionalGpu gpu;
  bool isTaken = false;  // a call of this process waits for the other side
  bool isCancelled = false;
  Peer guest{};  // the other side, from its connection until the bootstrap is over
};

class RootTable {
 public:
  // Makes one. The ticket.
  Result<std::string> add(std::shared_ptr<Context> context, OptionalGpu gpu);

  enum class Claim : uint8_t {
    kTaken,        // by this call
    kTakenBefore,  // by another call of this process: this one is the other side
    kNotHere,      // of another process, or not there any more
  };
  // Sets `root` where it returns kTaken.
  Claim take(const std::string& ticket, std::shared_ptr<Root>& root);
  void putBack(const std::string& ticket);
  // cancel() closes the connection to `guest` from now on, or this call does if it was cancelled
  // before.
  void setGuest(Root& root, const Peer& guest);
  // False: the root is not there (any more), as for cancel().
  bool drop(const std::string& ticket);
  bool cancel(const std::string& ticket);

 private:
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<Root>, std::less<>> roots_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane::p2p
