// SPDX-License-Identifier: Apache-2.0
//
// Eager: the payload travels in the inbox slot, after its envelope. For small messages: one copy
// more than rendezvous, but none of the user's memory is exposed to the peer. Thread-safe: no
// state.
#pragma once

#include "peerlane/channel/protocol/protocols.h"

namespace peerlane {

struct EagerShape {
  MessageLane lane;
  uint64_t payloadBytes = 0;  // 0: the envelope alone
};

// Index of the op that moves the payload, where payloadBytes > 0; its `bytes` may be changed
// between executions.
inline constexpr size_t kEagerReceiverPayloadOp = 1;

// The sender's program ends when the receiver has answered; its copy of the answer says whether the
// receiver took the message. Without a payload it is the sender of rendezvous-get as well.
// Requires: payloadBytes + kInboxPayloadOffset <= lane.inboxStrideBytes.
Program eagerSender(const EagerShape& shape);
// payloadBytes: what the receiver has room for. The envelope bounds what is really copied.
Program eagerReceiver(const EagerShape& shape);

}  // namespace peerlane
