// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/protocol/device_get_protocol.h"

#include "peerlane/channel/protocol/protocols.h"

namespace peerlane {
namespace {

Target getWords(const StreamShape& shape, const char* name, Side side) {
  return {.name = name,
          .side = side,
          .cursor = 0,
          .slots = shape.slots,
          .strideBytes = DeviceArea::kWordStrideBytes};
}

}  // namespace

Program streamGetHead(const StreamShape& shape) {
  using Ops = GetHeadOps;
  ProgramBuilder program("stream-get-head");
  program.cursor(1);
  program.target(getWords(shape, "offered", Side::kRemote));
  program.target(getWords(shape, "taken", Side::kLocal));
  program.wait({.target = Ops::kTaken}, oneTurnAgo(shape.slots));
  for (const uint32_t at : {DeviceArea::kBytesAt, DeviceArea::kOfferedAllocationAt,
                            DeviceArea::kOfferedGenerationAt, DeviceArea::kOfferedOffsetAt})
    program.store({.target = Ops::kOffered, .offset = at}, {}, Order::kRelaxed);
  program.store({.target = Ops::kOffered}, thisMessage(), Order::kRelease);
  return program.build();
}

Program streamGetTail(const StreamShape& shape) {
  ProgramBuilder program("stream-get-tail");
  program.cursor(1);
  program.target(getWords(shape, "taken", Side::kLocal));
  program.wait({.target = GetTailOps::kTaken}, thisMessage());
  return program.build();
}

Program streamGetRecv(const StreamShape& shape) {
  using Ops = GetRecvOps;
  ProgramBuilder program("stream-get-recv");
  program.cursor(1);
  program.local("buffer");
  program.target({.name = "payload", .side = Side::kRemote, .late = true});
  program.target(getWords(shape, "offered", Side::kLocal));
  program.target(getWords(shape, "taken", Side::kRemote));
  program.wait({.target = Ops::kOffered}, thisMessage())
      .copy({.target = Ops::kBuffer}, {.target = Ops::kPayload}, 1)
      .store({.target = Ops::kTaken, .offset = DeviceArea::kAcceptedAt}, thisMessage(),
             Order::kRelaxed)
      // A release also for the reads: the sender refills its buffer when it sees this.
      .store({.target = Ops::kTaken}, thisMessage(), Order::kRelease);
  return program.build();
}

}  // namespace peerlane
