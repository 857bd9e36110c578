// SPDX-License-Identifier: Apache-2.0
//
// DoorbellServer: the thread that looks at the bells of triggered queues and has the links perform
// what was launched. One for each context that has a doorbell queue: the first one makes it, and it
// ends with the last. A store of a device wakes nobody, so it polls as a Proxy does: without a
// pause for PEERLANE_SPIN_US after work, then with naps that grow to 1 ms; wake() ends a nap.
// Thread-safe.
#pragma once

#include <memory>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/progress/progress.h"
#include "peerlane/progress/proxy.h"

namespace peerlane {

// A queue, for the server.
class DoorbellQueue {
 public:
  // One look at its bell, and at what is under way. The server's thread.
  virtual Proxy::Turn look() = 0;

 protected:
  ~DoorbellQueue() = default;
};

class DoorbellServer {
 public:
  // The one of the context that has this engine. `spin`: for the first queue that asks.
  static Result<std::shared_ptr<DoorbellServer>> of(Progress& progress, Proxy::Duration spin);
  ~DoorbellServer();
  DoorbellServer(const DoorbellServer&) = delete;
  DoorbellServer& operator=(const DoorbellServer&) = delete;

  void add(DoorbellQueue& queue);
  // After it the server has no look at the queue under way, and begins none. Not on its thread.
  void remove(DoorbellQueue& queue);
  // The next look follows at once, and the server polls for a while.
  void wake() { proxy_->wake(); }
  // The next look follows at once, and no more: for a thread that has stored a bell.
  void prod() { proxy_->prod(); }

 private:
  explicit DoorbellServer(Progress& progress) : progress_(progress) {}
  Proxy::Turn turn();

  Progress& progress_;
  Mutex mutex_;  // held while the queues have their looks
  std::vector<DoorbellQueue*> queues_ PEERLANE_GUARDED_BY(mutex_);
  std::unique_ptr<Proxy> proxy_;
};

}  // namespace peerlane
