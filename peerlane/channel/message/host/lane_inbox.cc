// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/host/lane_inbox.h"

#include <cstring>

#include "peerlane/program/words/word.h"

namespace peerlane {

const std::byte* LaneInbox::slotOf(uint64_t number) const {
  return env_.area->base + LaneArea::kInboxOffset +
         number % LaneEnd::kSlots * uint64_t{LaneArea::strideBytes(env_.eagerBytes)};
}

// The load acquires what the sender wrote before its release of the sequence word: the envelope,
// and behind it the payload of an eager message.
bool LaneInbox::has(uint64_t number) const {
  return satisfies(loadWord(slotOf(number), Width::k64), Compare::kGreaterEqual, number + 1,
                   Width::k64);
}

// Copied before it is looked at: the peer may change its memory at any time.
bool LaneInbox::read(uint64_t number, Envelope& envelope) const {
  std::memcpy(&envelope, slotOf(number) + kSequenceBytes, sizeof(Envelope));
  return envelope.number == number && envelope.part.canBe() &&
         envelope.part.index <= envelope.number && envelope.kind >= MessageKind::kEager &&
         envelope.kind <= MessageKind::kVoid &&
         (envelope.kind != MessageKind::kEager || envelope.bytes <= env_.eagerBytes);
}

}  // namespace peerlane
