// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/pending.h"

namespace peerlane {
namespace {

// Failures kept for handles that ask late; a plan that fails more often than this forgets the
// oldest.
constexpr size_t kKeptFailures = 64;

}  // namespace

Status Pending::forkedStatus() {
  return Status(Code::kNotSupported,
                "this transfer was posted before fork(); its end is told to the parent only");
}

Status Pending::status(uint64_t number) const {
  if (!done(number)) {
    progress_.turn();  // whoever looks in a loop brings the end about
    if (!done(number)) return Status(Code::kTryAgain, "the transfer is still running");
  }
  const std::lock_guard lock(mutex_);
  auto failed = failures_.find(number);
  return failed == failures_.end() ? Status::ok() : failed->second;
}

Status Pending::wait(uint64_t number, std::chrono::nanoseconds timeout) {
  PEERLANE_RETURN_IF_ERROR(progress_.wait([&] { return done(number); }, timeout));
  return status(number);
}

void Pending::markEnded(uint64_t number, const Status& status) {
  std::function<void(const Status&)> callback;
  {
    const std::lock_guard lock(mutex_);
    if (!status.isOk()) {
      if (failures_.size() >= kKeptFailures) failures_.erase(failures_.begin());
      failures_[number] = status;
    }
    ended_.store(number, std::memory_order_release);
    if (event_) signalEventFd(event_.get());
    callback = std::move(callback_);
    callback_ = nullptr;
  }
  if (callback) progress_.post([callback = std::move(callback), status] { callback(status); });
  progress_.notifyWaiters();
}

Result<int> Pending::fd(uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (!event_) {
    PEERLANE_ASSIGN(event_, makeEventFd());
  } else if (!done(number)) {
    drainEventFd(event_.get());  // of an earlier operation
  }
  if (done(number)) signalEventFd(event_.get());
  return event_.get();
}

void Pending::onEnd(uint64_t number, std::function<void(const Status&)> fn) {
  {
    const std::lock_guard lock(mutex_);
    if (!done(number)) {
      callback_ = std::move(fn);
      return;
    }
  }
  fn(status(number));
}

}  // namespace peerlane
