// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/peer_status.h"

#include <utility>

#include "peerlane/progress/awaited.h"

namespace peerlane {

const char* peerStateName(PeerState state) {
  switch (state) {
    case PeerState::kConnecting: return "connecting";
    case PeerState::kReady: return "ready";
    case PeerState::kSilent: return "silent";
    case PeerState::kLost: return "lost";
    case PeerState::kClosed: return "closed";
  }
  return "?";
}

PeerState PeerStatus::told() const {
  const PeerState known = state();
  if (isOver(known)) return known;
  switch (failureCode()) {
    case Code::kOk: return PeerState::kReady;
    case Code::kPeerSilent: return PeerState::kSilent;
    case Code::kUnavailable: return known;  // as long as it connects
    case Code::kClosed: return PeerState::kClosed;
    default: return PeerState::kLost;
  }
}

Status PeerStatus::failure() const {
  if (failureCode() == Code::kOk) return Status::ok();
  const MutexLock lock(mutex_);
  return failure_;
}

// A beat asks unless something was heard within half an interval: so a living peer is heard within
// one and a half.
std::string PeerStatus::silence(std::chrono::nanoseconds heartbeat) const {
  if (!met() || over()) return {};
  const Clock::duration quiet = Clock::now() - lastHeard_.load(std::memory_order_relaxed);
  if (quiet < 2 * heartbeat) return {};
  return " (nothing heard of it for " + durationInWords(quiet) + ")";
}

void PeerStatus::setReady() {
  setLastHeard(Clock::now());
  failureCode_.store(Code::kOk, std::memory_order_release);
  met_.store(true, std::memory_order_release);
  state_.store(PeerState::kReady, std::memory_order_release);
}

void PeerStatus::setSilent(Status why) {
  setFailure(std::move(why));
  state_.store(PeerState::kSilent, std::memory_order_release);
}

void PeerStatus::setHeard() {
  failureCode_.store(Code::kOk, std::memory_order_release);
  state_.store(PeerState::kReady, std::memory_order_release);
}

void PeerStatus::setFailure(Status why) {
  const MutexLock lock(mutex_);
  failure_ = std::move(why);
  failureCode_.store(failure_.code(), std::memory_order_release);
}

}  // namespace peerlane
