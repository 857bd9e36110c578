// SPDX-License-Identifier: Apache-2.0
//
// Zero copy: the payload goes from the sender's buffer straight into the receiver's. get: the
// receiver pulls, after it learned from the envelope where the payload is. put: the sender pushes,
// after it learned from the answer where the buffer is. Thread-safe: no state.
#pragma once

#include "peerlane/channel/protocol/protocols.h"

namespace peerlane {

struct ZcopyShape {
  MessageLane lane;
  uint64_t payloadBytes = 0;  // above 0; what the side that emits has or has room for
};

// Index of the op that moves the payload; its `bytes` may be changed between executions.
inline constexpr size_t kZcopyGetReceiverPayloadOp = 1;
inline constexpr size_t kZcopyPutSenderPayloadOp = 4;

// get. The sender runs eagerSender() without a payload, which ends when the receiver has the
// payload (or refused it). The receiver's program ends when it has told so.
Program zcopyGetReceiver(const ZcopyShape& shape);

// put. The receiver's answer says where its buffer is, or refuses; whoever binds the late
// kSenderPeerBuffer reads it. The sender's program ends when the payload is written and told, the
// receiver's when it was told.
Program zcopyPutSender(const ZcopyShape& shape);
Program zcopyPutReceiver(const ZcopyShape& shape);

}  // namespace peerlane
