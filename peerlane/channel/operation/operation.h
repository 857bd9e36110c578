// SPDX-License-Identifier: Apache-2.0
//
// Operation: one posted operation until its end, and its completion for every thread that asks for
// it: the handles of a Transfer point to it. The class that carries the operation out derives from
// it, or keeps it. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "peerlane/channel/operation/end_calls.h"
#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/os/process.h"
#include "peerlane/os/readiness.h"
#include "peerlane/progress/progress.h"

namespace peerlane {

class Operation {
 public:
  explicit Operation(Progress& progress) : progress_(progress) {}
  virtual ~Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  bool done() const { return ended_.load(std::memory_order_acquire); }
  Status status() const;
  virtual Status wait(std::chrono::nanoseconds timeout);
  Result<int> fd();
  // As Transfer::onEnd().
  void onEnd(std::function<void(const Status&)> fn);
  // Asks the operation to end early; the thread that carries it out finds cancelled() at its next
  // turn.
  virtual void cancel();
  // In a forked child no thread ends anything, and locks may be held for ever.
  bool forked() const { return forkGeneration() != forks_; }
  static Status forkedStatus();
  // One line for timeouts: the operation, and the thing that it waits for. Called while no turn is
  // under way.
  virtual std::string describe() const { return {}; }
  // For host streams: begins now, and returns when the operation has ended.
  virtual void runToEnd() {}

 protected:
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }
  // Call it once, when nothing of the operation touches memory any more.
  void markEnded(const Status& status);
  // The end of the operation in the words of a wait for it (Awaited).
  std::string endInWords() const;

  Progress& progress_;

 private:
  std::atomic<bool> ended_{false};      // stored after status_; acquire by done()
  std::atomic<bool> cancelled_{false};  // by cancel(); acquire by the thread that runs it
  const uint64_t forks_ = forkGeneration();
  Mutex mutex_;
  Status status_;  // written before ended_, and constant from then on
  Readiness readiness_ PEERLANE_GUARDED_BY(mutex_);
  // Null while no function was given. Its lock is taken after mutex_.
  std::shared_ptr<EndCalls> calls_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
