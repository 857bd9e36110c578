// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/protocol/eager_protocol.h"

namespace peerlane {

Program eagerSender(const EagerShape& shape) {
  ProgramBuilder program = senderProgram("eager-send", shape.lane);
  beginMessage(program, shape.lane);
  if (shape.payloadBytes > 0)
    program.copy({.target = kSenderInbox, .offset = kInboxPayloadOffset},
                 {.target = kSenderPayload}, shape.payloadBytes);
  program.store({.target = kSenderInbox}, thisMessage(), Order::kRelease)
      .wait({.target = kSenderAnswers}, thisMessage())
      .copy({.target = kSenderAnswer}, {.target = kSenderAnswers, .offset = kSequenceBytes},
            kAnswerBytes)
      .store({.target = kSenderFree}, thisMessage(), Order::kRelease);
  return program.build();
}

Program eagerReceiver(const EagerShape& shape) {
  ProgramBuilder program = receiverProgram("eager-recv", shape.lane);
  program.wait({.target = kReceiverInbox}, thisMessage());
  if (shape.payloadBytes > 0)
    program.copy({.target = kReceiverBuffer},
                 {.target = kReceiverInbox, .offset = kInboxPayloadOffset}, shape.payloadBytes);
  program
      .copy({.target = kReceiverPeerAnswers, .offset = kSequenceBytes}, {.target = kReceiverAnswer},
            kAnswerBytes)
      .store({.target = kReceiverPeerAnswers}, thisMessage(), Order::kRelease);
  return program.build();
}

}  // namespace peerlane
