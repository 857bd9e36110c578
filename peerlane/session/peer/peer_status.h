// SPDX-License-Identifier: Apache-2.0
//
// PeerStatus: whether one peer can be used, and why not. Any thread may ask, without a lock while
// the peer is ready; only the progress thread changes it. Owned by PeerEnvironment.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/os/process.h"

namespace peerlane {

enum class PeerState : uint8_t {
  kConnecting,
  kReady,
  kSilent,  // nothing heard for the peer timeout; may come back
  kLost,    // its end is proven
  kClosed,  // closed by this side
};
const char* peerStateName(PeerState state);

class PeerStatus {
 public:
  using Clock = std::chrono::steady_clock;

  PeerState state() const { return state_.load(std::memory_order_acquire); }
  bool over() const { return isOver(state()); }
  // For programs. Agrees with failure() at any time; state() changes a moment after that.
  PeerState told() const;
  // It was ready once: link, slabs and identity are there, and stay as they are.
  bool met() const { return met_.load(std::memory_order_acquire); }
  Code failureCode() const { return failureCode_.load(std::memory_order_acquire); }
  // OK while ready; else why nothing can be posted.
  Status failure() const;
  // OK when something can be posted: ready, and not in a forked child.
  Status usable() const {
    if (forked())
      return Status(Code::kNotSupported,
                    "this peer belongs to a context made before fork(); make a new one");
    return failure();
  }
  bool forked() const { return forkGeneration() != forks_; }
  // " (nothing heard of it for 12.3 s)" once that is longer than any pause of a living peer; else
  // nothing. `heartbeat`: the interval of this side.
  std::string silence(std::chrono::nanoseconds heartbeat) const;

  // --- Progress thread ---
  void setReady();
  void setSilent(Status why);
  // Ready again after it was silent.
  void setHeard();
  // A message has come.
  void setLastHeard(Clock::time_point when) { lastHeard_.store(when, std::memory_order_relaxed); }
  // The end comes in two steps: threads that see the state kLost or kClosed find the reason.
  void setFailure(Status why);
  void setOver(PeerState state) { state_.store(state, std::memory_order_release); }

 private:
  static bool isOver(PeerState state) {
    return state == PeerState::kLost || state == PeerState::kClosed;
  }

  const uint64_t forks_ = forkGeneration();
  std::atomic<bool> met_{false};
  // Stored (release) by the progress thread after the fields that they announce; loaded (acquire)
  // by all other threads.
  std::atomic<PeerState> state_{PeerState::kConnecting};
  std::atomic<Code> failureCode_{Code::kUnavailable};  // kOk while ready
  std::atomic<Clock::time_point> lastHeard_{};
  mutable Mutex mutex_;
  Status failure_ PEERLANE_GUARDED_BY(mutex_){Code::kUnavailable, "the peer is still connecting"};
};

}  // namespace peerlane
