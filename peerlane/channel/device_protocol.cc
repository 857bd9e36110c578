// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/device_protocol.h"

#include "peerlane/channel/device_area.h"
#include "peerlane/channel/protocols.h"

namespace peerlane {
namespace {

Target words(const char* name, Side side) {
  return {.name = name,
          .side = side,
          .lane = 0,
          .slots = DeviceArea::kSlots,
          .strideBytes = DeviceArea::kWordStrideBytes};
}

Target inbox(Side side) {
  return {.name = "inbox",
          .side = side,
          .lane = 0,
          .slots = DeviceArea::kSlots,
          .strideBytes = DeviceArea::kInboxStrideBytes};
}

}  // namespace

Program streamEagerSend() {
  using Ops = EagerSendOps;
  ProgramBuilder program("stream-eager-send");
  program.lane(1);
  program.local("payload");
  program.target(inbox(Side::kRemote));
  program.target(words("credits", Side::kLocal));
  program.wait({.target = Ops::kCredits}, oneTurnAgo(DeviceArea::kSlots))
      .copy({.target = Ops::kInbox, .offset = DeviceArea::kInboxPayloadOffset},
            {.target = Ops::kPayload}, DeviceArea::kEagerBytes)
      .store({.target = Ops::kInbox, .offset = DeviceArea::kBytesAt}, {}, Order::kRelaxed)
      .store({.target = Ops::kInbox}, thisMessage(), Order::kRelease);
  return program.build();
}

Program streamEagerRecv() {
  using Ops = EagerRecvOps;
  ProgramBuilder program("stream-eager-recv");
  program.lane(1);
  program.local("buffer");
  program.target(inbox(Side::kLocal));
  program.target(words("credits", Side::kRemote));
  program.target(words("free", Side::kLocal));
  program.wait({.target = Ops::kInbox}, thisMessage())
      .copy({.target = Ops::kBuffer},
            {.target = Ops::kInbox, .offset = DeviceArea::kInboxPayloadOffset},
            DeviceArea::kEagerBytes)
      .store({.target = Ops::kCredits}, thisMessage(), Order::kRelease)
      .store({.target = Ops::kFree}, thisMessage(), Order::kRelaxed);
  return program.build();
}

Program streamPutSend() {
  using Ops = PutSendOps;
  ProgramBuilder program("stream-put-send");
  program.lane(1);
  program.local("payload");
  program.target({.name = "buffer", .side = Side::kRemote, .late = true});
  program.target(words("posted", Side::kLocal));
  program.target(words("done", Side::kRemote));
  program.wait({.target = Ops::kPosted}, thisMessage())
      .copy({.target = Ops::kBuffer}, {.target = Ops::kPayload}, 1)
      .store({.target = Ops::kDone, .offset = DeviceArea::kBytesAt}, {}, Order::kRelaxed)
      .store({.target = Ops::kDone}, thisMessage(), Order::kRelease);
  return program.build();
}

Program streamPutHead() {
  using Ops = PutHeadOps;
  ProgramBuilder program("stream-put-head");
  program.lane(1);
  program.target(words("posted", Side::kRemote));
  program.target(words("free", Side::kLocal));
  program.wait({.target = Ops::kFree}, oneTurnAgo(DeviceArea::kSlots));
  for (const uint32_t at : {DeviceArea::kAllocationAt, DeviceArea::kGenerationAt,
                            DeviceArea::kOffsetAt, DeviceArea::kPostedBytesAt})
    program.store({.target = Ops::kPosted, .offset = at}, {}, Order::kRelaxed);
  program.store({.target = Ops::kPosted}, thisMessage(), Order::kRelease);
  return program.build();
}

Program streamPutTail() {
  using Ops = PutTailOps;
  ProgramBuilder program("stream-put-tail");
  program.lane(1);
  program.target(words("done", Side::kLocal));
  program.target(words("credits", Side::kRemote));
  program.target(words("free", Side::kLocal));
  program.wait({.target = Ops::kDone}, thisMessage())
      .store({.target = Ops::kCredits}, thisMessage(), Order::kRelease)
      .store({.target = Ops::kFree}, thisMessage(), Order::kRelaxed);
  return program.build();
}

}  // namespace peerlane
