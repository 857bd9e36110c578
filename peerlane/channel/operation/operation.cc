// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/operation/operation.h"

#include <utility>

namespace peerlane {

Status Operation::forkedStatus() {
  return Status(Code::kNotSupported,
                "this transfer was posted before fork(); its end is told to the parent only");
}

Status Operation::status() const {
  if (!done()) {
    progress_.turn();  // a caller that looks in a loop brings the end about
    if (!done()) return Status(Code::kTryAgain, "the transfer is still running");
  }
  return status_;
}

Status Operation::wait(std::chrono::nanoseconds timeout) {
  const auto words = [this] { return endInWords(); };
  PEERLANE_RETURN_IF_ERROR(progress_.wait([this] { return done(); }, timeout, words));
  return status();
}

// While no turn is under way an operation that has not ended stays as it is.
std::string Operation::endInWords() const {
  const std::string text = done() ? std::string() : describe();
  return text.empty() ? "the end of an operation, which came just now" : "this to end: " + text;
}

// An exchange, because wake() looks whether the engine sleeps: see there. A host stream may
// sleep in a wait.
void Operation::cancel() {
  cancelled_.exchange(true, std::memory_order_seq_cst);
  progress_.notifyWaiters();
  progress_.wake();
}

void Operation::markEnded(const Status& status) {
  std::shared_ptr<EndCalls> calls;
  {
    const MutexLock lock(mutex_);
    PEERLANE_CHECK(!done());
    status_ = status;
    ended_.store(true, std::memory_order_seq_cst);  // partner: the waiters that are told below
    readiness_.set(true);
    calls = calls_;
  }
  if (calls != nullptr) calls->end(progress_, status);
  progress_.notifyWaiters();
}

Result<int> Operation::fd() {
  const MutexLock lock(mutex_);
  return readiness_.fd();
}

void Operation::onEnd(std::function<void(const Status&)> fn) {
  std::shared_ptr<EndCalls> calls;
  {
    const MutexLock lock(mutex_);
    if (calls_ == nullptr) {
      calls_ = std::make_shared<EndCalls>();
      if (done()) calls_->end(progress_, status_);  // posts nothing: there are none yet
    }
    calls = calls_;
  }
  calls->add(std::move(fn));
}

}  // namespace peerlane
