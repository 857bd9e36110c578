// SPDX-License-Identifier: Apache-2.0
//
// The common part of the message protocols (eager, rendezvous-get and rendezvous-put): one lane of
// messages from a sender to a receiver, and the ids of its targets. Protocols are pure functions
// that return a Program per side; they know neither the executor that runs it nor the wire.
// Thread-safe: no state.
//
// Every message has a number (cursor 0) and a slot (number mod slots). Every word belongs to a
// slot, is written by one side only and is polled in memory of the waiter's own side. Because no
// word is shared between slots, executions of one lane may run at the same time and end in any
// order, as long as each has a cursor of its own. One direction looks like this:
//
//   at the receiver  inbox[slot]    {u64 sequence; envelope 56 bytes; eager payload}
//                    done[slot]     {u64 sequence}                     (rendezvous-put only)
//   at the sender    answers[slot]  {u64 sequence; answer 56 bytes}
//                    free[slot]     {u64 sequence}                     (written by the sender too)
//
// The three protocols may follow each other on one lane: the envelope says which one it is, so a
// receiver may wait with any of them, look, and go on with the fitting one from its second op.
//
// Late targets are bound when an op first touches them, from the envelope or the answer that the
// program's wait was for; the binder reads it in the ring, where it stays unchanged until the
// program ends. A copy that touches a late target moves the smaller of its own size and of the size
// that was bound; bound to 0 bytes, it moves nothing. In this way a refusal ends both sides.
#pragma once

#include "peerlane/program/model/program.h"

namespace peerlane {

inline constexpr uint32_t kSequenceBytes = 8;   // the sequence word: first in every slot
inline constexpr uint32_t kEnvelopeBytes = 56;  // with the sequence word: one cache line
inline constexpr uint32_t kAnswerBytes = 56;
inline constexpr uint32_t kInboxPayloadOffset = kSequenceBytes + kEnvelopeBytes;
inline constexpr uint32_t kAnswerSlotBytes = kSequenceBytes + kAnswerBytes;
inline constexpr uint32_t kWordSlotBytes = 64;  // done, free: a cache line each

// Targets of every sender program. Those that a protocol does not touch need no binding.
enum SenderTarget : TargetId {
  kSenderEnvelope,    // local, 56 bytes: says protocol, size, tag, where the payload is
  kSenderPayload,     // local
  kSenderInbox,       // remote ring
  kSenderAnswers,     // local ring
  kSenderAnswer,      // local, 56 bytes: receives the answer (eager confirmed, rendezvous-get)
  kSenderFree,        // local ring of words
  kSenderPeerBuffer,  // remote, late: where the answer says (rendezvous-put)
  kSenderPeerDone,    // remote ring of words (rendezvous-put)
  kSenderTargets
};

// Targets of every receiver program.
enum ReceiverTarget : TargetId {
  kReceiverInbox,        // local ring
  kReceiverBuffer,       // local, late: as large as the envelope allows
  kReceiverPeerPayload,  // remote, late: where the envelope says (rendezvous-get)
  kReceiverAnswer,       // local, late, 56 bytes: the receiver's verdict on the envelope
  kReceiverPeerAnswers,  // remote ring
  kReceiverDone,         // local ring of words (rendezvous-put)
  kReceiverTargets
};

// The rings of a lane. All messages of a lane use the same.
struct MessageLane {
  uint32_t slots = 0;
  uint32_t inboxStrideBytes = kInboxPayloadOffset;  // larger where eager payloads travel
};

// A builder with lane 0 (one message per execution) and the targets above, in their order.
ProgramBuilder senderProgram(const char* name, const MessageLane& lane);
ProgramBuilder receiverProgram(const char* name, const MessageLane& lane);

// The first ops of every confirmed sender: wait until the slot is free, copy the envelope. The
// payload and the sequence word follow.
void beginMessage(ProgramBuilder& program, const MessageLane& lane);

// The values that words take: the number of messages up to and including this one, and the value
// that a slot held one lap of the ring ago.
inline Operand thisMessage() {
  return {.cursor = 0, .delta = 1};
}
inline Operand oneTurnAgo(uint32_t slots) {
  return {.cursor = 0, .delta = 1 - static_cast<int64_t>(slots)};
}

}  // namespace peerlane
