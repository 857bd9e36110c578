// SPDX-License-Identifier: Apache-2.0
//
// Rendezvous: the payload goes from the sender's buffer straight into the receiver's (zero copy).
// rendezvous-get: the receiver pulls, after it learned from the envelope where the payload is.
// rendezvous-put: the sender pushes, after it learned from the answer where the buffer is.
// Thread-safe: no state.
#pragma once

#include "peerlane/channel/protocol/protocols.h"

namespace peerlane {

struct RendezvousShape {
  MessageLane lane;
  uint64_t payloadBytes = 0;  // above 0; the emitting side has as much, or room for it
};

// Index of the op that moves the payload; its `bytes` may be changed between executions.
inline constexpr size_t kRendezvousGetReceiverPayloadOp = 1;
inline constexpr size_t kRendezvousPutSenderPayloadOp = 4;

// rendezvous-get. The sender runs eagerSender() without a payload, which ends when the receiver has
// the payload (or refused it). The receiver's program ends when it has stored the answer.
Program rendezvousGetReceiver(const RendezvousShape& shape);

// rendezvous-put. The receiver's answer says where its buffer is, or refuses; the binder of the
// late kSenderPeerBuffer reads it. The sender's program ends when it has written the payload and
// said so, the receiver's when it has been told.
Program rendezvousPutSender(const RendezvousShape& shape);
Program rendezvousPutReceiver(const RendezvousShape& shape);

}  // namespace peerlane
