// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/protocol/device_protocol.h"

#include "peerlane/channel/protocol/protocols.h"

namespace peerlane {
namespace {

Target words(const StreamShape& shape, const char* name, Side side) {
  return {.name = name,
          .side = side,
          .cursor = 0,
          .slots = shape.slots,
          .strideBytes = DeviceArea::kWordStrideBytes};
}

Target inbox(const StreamShape& shape, Side side) {
  return {.name = "inbox",
          .side = side,
          .cursor = 0,
          .slots = shape.slots,
          .strideBytes =
              (shape.eagerBytes + kPacketPayloadBytes - 1) / kPacketPayloadBytes * kPacketBytes,
          .packets = true};
}

}  // namespace

Program streamEagerSend(const StreamShape& shape) {
  using Ops = EagerSendOps;
  ProgramBuilder program("stream-eager-send");
  program.cursor(1);
  program.local("payload");
  program.target(inbox(shape, Side::kRemote));
  program.target(words(shape, "credits", Side::kLocal));
  program.wait({.target = Ops::kCredits}, oneTurnAgo(shape.slots))
      .copyPackets({.target = Ops::kInbox}, {.target = Ops::kPayload}, shape.eagerBytes,
                   thisMessage());
  return program.build();
}

Program streamEagerRecv(const StreamShape& shape) {
  using Ops = EagerRecvOps;
  ProgramBuilder program("stream-eager-recv");
  program.cursor(1);
  program.local("buffer");
  program.target(inbox(shape, Side::kLocal));
  program.target(words(shape, "credits", Side::kRemote));
  program.waitPackets({.target = Ops::kInbox}, thisMessage(), shape.eagerBytes)
      .copy({.target = Ops::kBuffer}, {.target = Ops::kInbox}, shape.eagerBytes)
      .store({.target = Ops::kCredits}, thisMessage(), Order::kRelease);
  return program.build();
}

Program streamPutSend(const StreamShape& shape) {
  using Ops = PutSendOps;
  ProgramBuilder program("stream-put-send");
  program.cursor(1);
  program.local("payload");
  program.target({.name = "buffer", .side = Side::kRemote, .late = true});
  program.target(words(shape, "posted", Side::kLocal));
  program.target(words(shape, "done", Side::kRemote));
  program.wait({.target = Ops::kPosted}, thisMessage())
      .copy({.target = Ops::kBuffer}, {.target = Ops::kPayload}, 1)
      .store({.target = Ops::kDone, .offset = DeviceArea::kBytesAt}, {}, Order::kRelaxed)
      .store({.target = Ops::kDone}, thisMessage(), Order::kRelease);
  return program.build();
}

Program streamPutHead(const StreamShape& shape) {
  using Ops = PutHeadOps;
  ProgramBuilder program("stream-put-head");
  program.cursor(1);
  program.target(words(shape, "posted", Side::kRemote));
  program.target(words(shape, "free", Side::kLocal));
  program.wait({.target = Ops::kFree}, oneTurnAgo(shape.slots));
  for (const uint32_t at : {DeviceArea::kAllocationAt, DeviceArea::kGenerationAt,
                            DeviceArea::kOffsetAt, DeviceArea::kPostedBytesAt})
    program.store({.target = Ops::kPosted, .offset = at}, {}, Order::kRelaxed);
  program.store({.target = Ops::kPosted}, thisMessage(), Order::kRelease);
  return program.build();
}

Program streamPutTail(const StreamShape& shape) {
  using Ops = PutTailOps;
  ProgramBuilder program("stream-put-tail");
  program.cursor(1);
  program.target(words(shape, "done", Side::kLocal));
  program.target(words(shape, "free", Side::kLocal));
  program.wait({.target = Ops::kDone}, thisMessage())
      .store({.target = Ops::kFree}, thisMessage(), Order::kRelease);
  return program.build();
}

}  // namespace peerlane
