// SPDX-License-Identifier: Apache-2.0
//
// Eager: the payload travels in the inbox slot, after its envelope. For small messages: one copy
// more than rendezvous (zcopy), but none of the user's memory is exposed to the peer. Thread-safe:
// no state.
#pragma once

#include "peerlane/channel/protocol/protocols.h"

namespace peerlane {

struct EagerShape {
  MessageLane lane;
  uint64_t payloadBytes = 0;  // 0: the envelope alone
  // The sender's program ends when the receiver has answered (it learns of a size mismatch),
  // instead of when the message lies in the inbox. Both sides and all messages of a lane alike:
  // unconfirmed messages free their slot by the answer's sequence word and do not mix with other
  // protocols.
  bool confirmed = true;
};

// Index of the op that moves the payload, where payloadBytes > 0: a prepared program may be posted
// with other sizes by changing `bytes` there, up to what the inbox slot holds.
inline constexpr size_t kEagerSenderPayloadOp = 2;
inline constexpr size_t kEagerReceiverPayloadOp = 1;

// Requires: payloadBytes + kInboxPayloadOffset <= lane.inboxStrideBytes.
Program eagerSender(const EagerShape& shape);
// payloadBytes: what the receiver has room for. The envelope bounds what is really copied.
Program eagerReceiver(const EagerShape& shape);

}  // namespace peerlane
