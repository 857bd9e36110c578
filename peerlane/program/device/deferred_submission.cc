// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/device/deferred_submission.h"

namespace peerlane {

bool DeferredSubmission::Job::leaveQueue(State next) {
  State queued = State::kQueued;
  return state_.compare_exchange_strong(queued, next, std::memory_order_acq_rel);
}

void DeferredSubmission::Job::run(const std::function<Result<DevicePost>(DeviceProgram&)>& post) {
  if (!leaveQueue(State::kPosting)) return;
  auto made = post(*program_);
  if (made.isOk())
    post_ = *made;
  else
    failure_ = made.status();
  state_.store(made.isOk() ? State::kPosted : State::kFailed, std::memory_order_release);
}

bool DeferredSubmission::isToCome() const {
  const State state = job_->state_.load(std::memory_order_acquire);
  return state == State::kQueued || state == State::kPosting;
}

bool DeferredSubmission::ended() const {
  if (isToCome()) return false;
  return job_->state_.load(std::memory_order_acquire) != State::kPosted || job_->post_.ended();
}

Status DeferredSubmission::status() const {
  const State state = job_->state_.load(std::memory_order_acquire);
  if (state == State::kTakenBack) return Status(Code::kCancelled, "the post was taken back");
  return state == State::kFailed ? job_->failure_ : job_->post_.status();
}

void DeferredSubmission::takeBack() {
  (void)job_->leaveQueue(State::kTakenBack);
}

}  // namespace peerlane
