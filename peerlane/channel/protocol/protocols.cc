// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/protocol/protocols.h"

namespace peerlane {
namespace {

Target ring(const char* name, Side side, uint32_t slots, uint32_t strideBytes) {
  return {.name = name, .side = side, .cursor = 0, .slots = slots, .strideBytes = strideBytes};
}

}  // namespace

ProgramBuilder senderProgram(const char* name, const MessageLane& lane) {
  ProgramBuilder program(name);
  program.cursor(1);
  program.local("envelope");
  program.local("payload");
  program.target(ring("inbox", Side::kRemote, lane.slots, lane.inboxStrideBytes));
  program.target(ring("answers", Side::kLocal, lane.slots, kAnswerSlotBytes));
  program.local("answer");
  program.target(ring("free", Side::kLocal, lane.slots, kWordSlotBytes));
  program.target({.name = "buffer", .side = Side::kRemote, .late = true});
  program.target(ring("done", Side::kRemote, lane.slots, kWordSlotBytes));
  return program;
}

ProgramBuilder receiverProgram(const char* name, const MessageLane& lane) {
  ProgramBuilder program(name);
  program.cursor(1);
  program.target(ring("inbox", Side::kLocal, lane.slots, lane.inboxStrideBytes));
  program.target({.name = "buffer", .side = Side::kLocal, .late = true});
  program.target({.name = "payload", .side = Side::kRemote, .late = true});
  program.target({.name = "answer", .side = Side::kLocal, .late = true});
  program.target(ring("answers", Side::kRemote, lane.slots, kAnswerSlotBytes));
  program.target(ring("done", Side::kLocal, lane.slots, kWordSlotBytes));
  return program;
}

void beginMessage(ProgramBuilder& program, const MessageLane& lane) {
  // Not "the receiver has answered the message one turn ago": its sender may still be reading that
  // answer, and the answer to this message would overwrite it.
  program.wait({.target = kSenderFree}, oneTurnAgo(lane.slots))
      .copy({.target = kSenderInbox, .offset = kSequenceBytes}, {.target = kSenderEnvelope},
            kEnvelopeBytes);
}

}  // namespace peerlane
