// SPDX-License-Identifier: Apache-2.0
//
// List: the protocol of streams for one message in many pieces: a direct put (device_protocol.h)
// whose receiver says where all its pieces are. Pure functions that return a Program per part; its
// messages are counted apart. Both sides compare the shape, a number made of the sizes of all
// pieces, where a put compares the length. Thread-safe: no state.
//
//   send  wait posted >= n+1; copy to the places; store shape; store done = n+1
//   head  wait free >= n-3; copy the places; store shape, regions; store posted = n+1
//   tail  wait done >= n+1; store free = n+1 (streamPutTail, of other words)
#pragma once

#include "peerlane/channel/protocol/device_protocol.h"

namespace peerlane {

// Values other than those of the area are for tests.
struct ListRing {
  uint32_t slots = DeviceArea::kListSlots;
  uint32_t slotBytes = DeviceArea::kListStrideBytes;
};

// Ops that differ from message to message: StepPatch::op. Expected words follow the ops. The call
// brings the pieces to copy (StepCall::pieces, StepCall::words).
struct ListSendOps {
  enum Target : TargetId { kPayload, kBuffer, kList, kPosted, kDone };
  static constexpr uint32_t kCopy = 1, kShape = 2, kExpectedShape = 4;
};
struct ListHeadOps {
  enum Target : TargetId { kPlaces, kList, kPosted, kFree };
  static constexpr uint32_t kCopy = 1, kShape = 2, kRegions = 3;
};

Program streamListSend(const ListRing& ring = {});
Program streamListHead(const ListRing& ring = {});

}  // namespace peerlane
