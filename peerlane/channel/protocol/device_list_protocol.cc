// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/protocol/device_list_protocol.h"

#include "peerlane/channel/protocol/protocols.h"

namespace peerlane {
namespace {

Target words(const ListRing& ring, const char* name, Side side) {
  return {.name = name,
          .side = side,
          .cursor = 0,
          .slots = ring.slots,
          .strideBytes = DeviceArea::kWordStrideBytes};
}

Target list(const ListRing& ring, Side side) {
  return {.name = "list",
          .side = side,
          .cursor = 0,
          .slots = ring.slots,
          .strideBytes = ring.slotBytes};
}

}  // namespace

Program streamListSend(const ListRing& ring) {
  using Ops = ListSendOps;
  ProgramBuilder program("stream-list-send");
  program.cursor(1);
  program.local("payload");
  program.target({.name = "buffer", .side = Side::kRemote, .late = true});
  program.target(list(ring, Side::kLocal));
  program.target(words(ring, "posted", Side::kLocal));
  program.target(words(ring, "done", Side::kRemote));
  program.wait({.target = Ops::kPosted}, thisMessage())
      .copy({.target = Ops::kBuffer}, {.target = Ops::kPayload}, 1)
      .store({.target = Ops::kDone, .offset = DeviceArea::kShapeAt}, {}, Order::kRelaxed)
      .store({.target = Ops::kDone}, thisMessage(), Order::kRelease);
  return program.build();
}

Program streamListHead(const ListRing& ring) {
  using Ops = ListHeadOps;
  ProgramBuilder program("stream-list-head");
  program.cursor(1);
  program.local("places");
  program.target(list(ring, Side::kRemote));
  program.target(words(ring, "posted", Side::kRemote));
  program.target(words(ring, "free", Side::kLocal));
  program.wait({.target = Ops::kFree}, oneTurnAgo(ring.slots))
      .copy({.target = Ops::kList}, {.target = Ops::kPlaces}, 1)
      .store({.target = Ops::kPosted, .offset = DeviceArea::kShapeAt}, {}, Order::kRelaxed)
      .store({.target = Ops::kPosted, .offset = DeviceArea::kRegionsAt}, {}, Order::kRelaxed)
      .store({.target = Ops::kPosted}, thisMessage(), Order::kRelease);
  return program.build();
}

}  // namespace peerlane
