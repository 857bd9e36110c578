// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/device_errand.h"

namespace peerlane {

bool DeviceErrand::ended() const {
  switch (state_.load(std::memory_order_acquire)) {
    case State::kQueued:
    case State::kPosting: return false;
    case State::kPosted: return post_.ended();
    case State::kFailed:
    case State::kTakenBack: break;
  }
  return true;
}

Status DeviceErrand::status() const {
  const State state = state_.load(std::memory_order_acquire);
  if (state == State::kTakenBack) return Status(Code::kCancelled, "the post was taken back");
  return state == State::kFailed ? failure_ : post_.status();
}

void DeviceErrand::takeBack() {
  State queued = State::kQueued;
  state_.compare_exchange_strong(queued, State::kTakenBack, std::memory_order_acq_rel);
}

void DeviceErrand::run(const Post& post) {
  State queued = State::kQueued;
  if (!state_.compare_exchange_strong(queued, State::kPosting, std::memory_order_acq_rel)) return;
  auto made = post(*program_);
  if (made.isOk())
    post_ = *made;
  else
    failure_ = made.status();
  state_.store(made.isOk() ? State::kPosted : State::kFailed, std::memory_order_release);
}

}  // namespace peerlane
