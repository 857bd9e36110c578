// SPDX-License-Identifier: Apache-2.0
//
// LaneInbox: the ring of envelopes in this side's area, which the peer alone writes. It says
// whether an envelope has come, and copies it out. Its LaneReceiver owns it. Only the runner of the
// lane calls it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/channel/message/host/message_lane.h"

namespace peerlane {

class LaneInbox {
 public:
  // `env` outlives it.
  explicit LaneInbox(const LaneEnvironment& env) : env_(env) {}

  bool has(uint64_t number) const;
  // Requires: has(number). False when no honest peer writes such an envelope.
  bool read(uint64_t number, Envelope& envelope) const;

 private:
  const std::byte* slotOf(uint64_t number) const;

  const LaneEnvironment& env_;
};

}  // namespace peerlane
