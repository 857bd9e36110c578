// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/protocol/eager_protocol.h"

namespace peerlane {

Program eagerSender(const EagerShape& shape) {
  ProgramBuilder program = senderProgram("eager-send", shape.lane);
  if (shape.confirmed) {
    beginMessage(program, shape.lane);
  } else {
    program.wait({.target = kSenderAnswers}, oneTurnAgo(shape.lane.slots))
        .copy({.target = kSenderInbox, .offset = kSequenceBytes}, {.target = kSenderEnvelope},
              kEnvelopeBytes);
  }
  if (shape.payloadBytes > 0)
    program.copy({.target = kSenderInbox, .offset = kInboxPayloadOffset},
                 {.target = kSenderPayload}, shape.payloadBytes);
  program.store({.target = kSenderInbox}, thisMessage(), Order::kRelease);
  if (shape.confirmed) {
    program.wait({.target = kSenderAnswers}, thisMessage())
        .copy({.target = kSenderAnswer}, {.target = kSenderAnswers, .offset = kSequenceBytes},
              kAnswerBytes)
        .store({.target = kSenderFree}, thisMessage(), Order::kRelease);
  }
  return program.build();
}

Program eagerReceiver(const EagerShape& shape) {
  ProgramBuilder program = receiverProgram("eager-recv", shape.lane);
  program.wait({.target = kReceiverInbox}, thisMessage());
  if (shape.payloadBytes > 0)
    program.copy({.target = kReceiverBuffer},
                 {.target = kReceiverInbox, .offset = kInboxPayloadOffset}, shape.payloadBytes);
  if (shape.confirmed)
    program.copy({.target = kReceiverPeerAnswers, .offset = kSequenceBytes},
                 {.target = kReceiverAnswer}, kAnswerBytes);
  program.store({.target = kReceiverPeerAnswers}, thisMessage(), Order::kRelease);
  return program.build();
}

}  // namespace peerlane
