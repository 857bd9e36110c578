// SPDX-License-Identifier: Apache-2.0
//
// PlanGates: the gates that every post of a plan goes through, and the flag by which a
// post tells the thread that takes a region back that it may be using it. External synchronization
// required.
#pragma once

#include <algorithm>
#include <vector>

#include "peerlane/channel/blocks/block_program.h"
#include "peerlane/core/asymmetric_fence.h"
#include "peerlane/memory/use_gate.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class PlanGates {
 public:
  // `peer` outlives it.
  explicit PlanGates(const PeerCore& peer) : peer_(peer) {}
  ~PlanGates() {
    // The locks below may be held for ever by threads that are not here.
    if (peer_.forked()) return;
    for (UseGate* gate : gates_) gate->withdraw(busy_);
  }
  PlanGates(const PlanGates&) = delete;
  PlanGates& operator=(const PlanGates&) = delete;

  // The gates of every region of `blocks` (imported, and alive as long as this), and of the peer's
  // slab if posts add to a signal. An error when one is closed already.
  Status enroll(const BlockProgram& blocks, bool addsToSignal) {
    for (const auto& local : blocks.locals()) gates_.push_back(&local->gate);
    for (const RemoteRegion& remote : blocks.remotes())
      gates_.push_back(&remote.slot()->region->gate);
    if (addsToSignal) gates_.push_back(&peer_.peerSlab()->gate);
    for (UseGate* gate : gates_) gate->enroll(busy_);
    return areOpen() ? Status::ok() : whyClosed();
  }

  bool raised() const { return busy_.raised.load(std::memory_order_acquire) != 0; }
  // Raises the flag and looks whether a post may go on. If not, the caller lowers the flag, if
  // nothing else needs it, and refusal() says why.
  bool raise() {
    busy_.raised.store(1, std::memory_order_relaxed);
    lightFence();  // partner: UseGate::close
    return peer_.failureCode() == Code::kOk && !peer_.forked() && areOpen();
  }
  // kRevoked where memory was taken back, or freed; OK else.
  Status whyRevoked() const { return whyCode() == Code::kRevoked ? whyClosed() : Status::ok(); }
  void lower() { busy_.raised.store(0, std::memory_order_release); }
  [[gnu::cold]] Status refusal() const {
    Status why = whyClosed();
    return why.isOk() ? Status(Code::kTryAgain, "the peer has just come back; post again") : why;
  }

 private:
  bool areOpen() const {
    return std::all_of(gates_.begin(), gates_.end(), [](UseGate* gate) { return gate->open(); });
  }
  Code whyCode() const {
    const auto isRevoked = [](UseGate* gate) { return gate->isRevoked(); };
    return std::ranges::any_of(gates_, isRevoked) ? Code::kRevoked : Code::kClosed;
  }
  // OK: no gate is closed now.
  Status whyClosed() const {
    if (peer_.forked()) return peer_.usable();
    if (!areOpen() && peer_.failureCode() == Code::kOk)
      return Status(
          whyCode(),
          "a region of this plan is being unregistered or was revoked, or the link that reached "
          "it has failed; in the last case make the plan anew");
    return peer_.failure();
  }

  const PeerCore& peer_;
  std::vector<UseGate*> gates_;
  BusyFlag busy_;
};

}  // namespace peerlane
