// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/protocol/rendezvous_protocol.h"

namespace peerlane {

Program rendezvousGetReceiver(const RendezvousShape& shape) {
  ProgramBuilder program = receiverProgram("rendezvous-get-recv", shape.lane);
  program.wait({.target = kReceiverInbox}, thisMessage())
      .copy({.target = kReceiverBuffer}, {.target = kReceiverPeerPayload}, shape.payloadBytes)
      .copy({.target = kReceiverPeerAnswers, .offset = kSequenceBytes}, {.target = kReceiverAnswer},
            kAnswerBytes)
      // Release also for the reads above: the sender refills its buffer when it sees this.
      .store({.target = kReceiverPeerAnswers}, thisMessage(), Order::kRelease);
  return program.build();
}

Program rendezvousPutSender(const RendezvousShape& shape) {
  ProgramBuilder program = senderProgram("rendezvous-put-send", shape.lane);
  beginMessage(program, shape.lane);
  program.store({.target = kSenderInbox}, thisMessage(), Order::kRelease)
      .wait({.target = kSenderAnswers}, thisMessage())
      .copy({.target = kSenderPeerBuffer}, {.target = kSenderPayload}, shape.payloadBytes)
      .store({.target = kSenderPeerDone}, thisMessage(), Order::kRelease)
      .store({.target = kSenderFree}, thisMessage(), Order::kRelease);
  return program.build();
}

Program rendezvousPutReceiver(const RendezvousShape& shape) {
  ProgramBuilder program = receiverProgram("rendezvous-put-recv", shape.lane);
  program.wait({.target = kReceiverInbox}, thisMessage())
      .copy({.target = kReceiverPeerAnswers, .offset = kSequenceBytes}, {.target = kReceiverAnswer},
            kAnswerBytes)
      .store({.target = kReceiverPeerAnswers}, thisMessage(), Order::kRelease)
      .wait({.target = kReceiverDone}, thisMessage());
  return program.build();
}

}  // namespace peerlane
