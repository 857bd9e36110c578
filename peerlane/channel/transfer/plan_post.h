// SPDX-License-Identifier: Apache-2.0
//
// PlanPost: one post of a plan that had not ended when the call returned: the operation to which
// its Transfer refers. The plan carries it out and says when it has ended; many posts of one plan
// may be under way, and each has its own end. Thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "peerlane/channel/operation/operation.h"
#include "peerlane/core/recycled_memory.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class PlanPost final : public Operation {
 public:
  explicit PlanPost(std::shared_ptr<PeerCore> peer)
      : Operation(peer->progress()), peer_(std::move(peer)) {}

  // Uses the memory of posts that have ended: only as many are made as are held at once.
  static std::shared_ptr<PlanPost> make(const std::shared_ptr<PeerCore>& peer) {
    return std::allocate_shared<PlanPost>(RecyclingAllocator<PlanPost>(), peer);
  }

  // For a post that a device carries out, whose stores ring no bell: a waiting thread spins so long
  // before it sleeps. Call it before any other thread has the post.
  void spinFirst(std::chrono::nanoseconds longest) { spin_ = longest; }
  Status wait(std::chrono::nanoseconds timeout) override {
    if (spin_ != std::chrono::nanoseconds{})
      (void)progress_.spinFor([this] { return done(); }, std::min(timeout, spin_));
    return Operation::wait(timeout);
  }

  std::string describe() const override { return "a post of a plan to " + peer_->name(); }

  // For the plan.
  using Operation::cancelled;
  using Operation::markEnded;

 private:
  const std::shared_ptr<PeerCore> peer_;  // keeps the engine
  std::chrono::nanoseconds spin_{};
};

}  // namespace peerlane
