// SPDX-License-Identifier: Apache-2.0
//
// Signal: one counter at the waiter's side. Puts may carry the addition: it is visible only after
// their bytes. Several sides may add. Thread-safe: no state.
#pragma once

#include "peerlane/program/model/program.h"

namespace peerlane {

// The bytes that a put moves: its own targets and the layout over them. The layout names targets by
// their index in `targets` plus the protocol's first data target.
struct PutPayload {
  std::vector<Target> targets;
  CopyLayout layout;
  // Blocks that an agent moves, where the CPU moves those above: one list is moved by one of the
  // two. Mostly empty.
  std::vector<Segment> byAgent;
};

enum SignalSenderTarget : TargetId {
  kSignalSenderCounter,   // remote counter
  kSignalSenderFirstData  // PutPayload::targets from here on
};

// Adds `value`, after everything that the same executor ran before for the same peer.
Program signalSender(uint64_t value);
// Moves the payload, then adds `value`.
Program putSignal(PutPayload payload, uint64_t value);

// Declares the payload's targets. For the protocols.
void declarePayload(ProgramBuilder& program, const PutPayload& payload);
// An op for the layout and one for the blocks that an agent moves: a plain copy where that is one
// segment, else a list. The agent's is the last one, so that the CPU does not wait for it in
// between.
void movePayload(ProgramBuilder& program, PutPayload payload);

}  // namespace peerlane
