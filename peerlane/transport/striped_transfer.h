// SPDX-License-Identifier: Apache-2.0
//
// StripedTransfer: one put or get, shared among some agents in parts of about the same size. Each
// of them has its part in a mailbox of its own. Used again for one transfer after the other,
// because a thread that has completed a mailbox may still look at it. Threads: begin() one, and no
// other call beside it; serve() and abort() any; the rest under one lock.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <span>

#include "peerlane/core/status.h"
#include "peerlane/program/model/mailbox.h"
#include "peerlane/transport/frame_agent.h"

namespace peerlane {

class StripedTransfer {
 public:
  // The agents outlive it.
  explicit StripedTransfer(std::span<FrameAgent* const> agents);
  StripedTransfer(const StripedTransfer&) = delete;
  StripedTransfer& operator=(const StripedTransfer&) = delete;

  // Shares `work`, a put or a get of `bytes` in all, among the first `parts` agents; serve() brings
  // the parts to them. Requires: hasEnded().
  void begin(AgentWork& work, uint64_t bytes, uint32_t parts);
  uint32_t parts() const { return parts_; }
  // As Mailbox::serveHere, for one part.
  bool serve(uint32_t part) { return stripes_[part].mailbox.serveHere(); }
  // As Mailbox::abort. serve() must follow.
  void abort(Code code);

  AgentWork& work() const { return *work_; }
  // Every part has, and no agent touches its memory any more.
  bool hasEnded() const;
  // The first failure. Requires: hasEnded().
  Code code() const;

  // Of the owner, under its lock: threads in serve() or abort(), as long as which it is not used
  // again; and its place in the order of beginnings.
  uint32_t users = 0;
  uint64_t number = 0;

 private:
  // A part begins and ends anywhere, also in the middle of a piece.
  struct Stripe {
    explicit Stripe(Agent& agent) : mailbox(agent) {}
    void add(Verb verb, const Piece* pieces, uint32_t count);
    Piece* cut(const Piece& whole, uint64_t offset, uint64_t bytes);

    Mailbox mailbox;
    std::array<Piece, 2> cuts;  // at the beginning and at the end
    uint32_t cutCount = 0;
  };

  std::deque<Stripe> stripes_;
  AgentWork* work_ = nullptr;
  uint32_t parts_ = 0;
};

}  // namespace peerlane
