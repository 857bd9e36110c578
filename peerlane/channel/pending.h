// SPDX-License-Identifier: Apache-2.0
//
// Pending: what a Transfer handle points to while its operation runs: the end, and everybody who
// wants to know of it. Base of TransferCore, PlanCore and MessageBatch.
// Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "peerlane/core/status.h"
#include "peerlane/os/fd.h"
#include "peerlane/os/process.h"
#include "peerlane/progress/progress.h"

namespace peerlane {

class Pending : public Task {
 public:
  explicit Pending(Progress& progress) : progress_(progress) {}

  // Operations of one object are numbered from 1; at most one runs at a time.
  bool done(uint64_t number) const { return ended_.load(std::memory_order_acquire) >= number; }
  Status status(uint64_t number) const;
  virtual Status wait(uint64_t number, std::chrono::nanoseconds timeout);
  Result<int> fd(uint64_t number);
  void onEnd(uint64_t number, std::function<void(const Status&)> fn);
  virtual void cancel() = 0;
  // The same for one operation of many: nothing happens when another one runs by now.
  virtual void cancelOperation(uint64_t /*number*/) { cancel(); }
  // In a forked child nobody ends anything, and locks may be held for ever.
  bool forked() const { return forkGeneration() != forks_; }
  static Status forkedStatus();
  // For host streams: begins now, and returns when the operation has ended.
  virtual void runToEnd() {}

 protected:
  // Ends operation `number`, exactly once. Nothing of it touches memory any more.
  void markEnded(uint64_t number, const Status& status);
  // The same where nobody can hold a handle yet: a store.
  void markEndedUnseen(uint64_t number) { ended_.store(number, std::memory_order_release); }

  Progress& progress_;

 private:
  std::atomic<uint64_t> ended_{0};  // release after the status; acquire by done()
  const uint64_t forks_ = forkGeneration();
  mutable std::mutex mutex_;
  std::map<uint64_t, Status> failures_;  // under mutex_, as the next two
  Fd event_;
  std::function<void(const Status&)> callback_;
};

}  // namespace peerlane
