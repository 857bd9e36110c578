// SPDX-License-Identifier: Apache-2.0
//
// The message protocols of streams: pure functions that return a Program per side. Neither side is
// told by the other how a message ended: lengths travel with the words, and each compares them with
// its own. Thread-safe: no state.
//
// Message n uses slot n mod 16 of everything. Eager: the payload travels in the receiver's inbox.
// Direct put: the receiver says where its buffer is, and the sender copies there (nvFuser's
// put-zcopy). Its receiver is in two parts, so that a group can say where all its buffers are
// before it waits for anything.
//
//   eager      send: wait credits >= n-15; copy payload; store bytes; store inbox = n+1
//              recv: wait inbox >= n+1; copy out; wait free >= n-15; store credits = n+1;
//                    store free = n+1
//   direct put send: wait posted >= n+1; copy to the buffer; store bytes; store done = n+1
//              head: wait free >= n-15; store where; store posted = n+1
//              tail: wait done >= n+1; store credits = n+1; store free = n+1
//
// Messages n and n+16 may be received on different streams. `free` keeps the words of their slot
// in order: it is the last store of message n, a release, and message n+16 stores nothing before
// it has seen it. Without the wait, message n+16, let in by the credits, is ahead of the `free` of
// message n; without the release, a receive let in by `free` is ahead of the credits. Either word
// then goes back from n+17 to n+1 for good.
#pragma once

#include "peerlane/channel/device_area.h"
#include "peerlane/program/program.h"

namespace peerlane {

// Both sides use the same. Others than those of the area are for tests.
struct StreamShape {
  uint32_t slots = DeviceArea::kSlots;
  uint32_t eagerBytes = DeviceArea::kEagerBytes;
};

// Ops that differ from message to message: StepPatch::op. Expected words follow the ops.
struct EagerSendOps {
  enum Target : TargetId { kPayload, kInbox, kCredits };
  static constexpr uint32_t kCopy = 1, kBytes = 2;
};
struct EagerRecvOps {
  enum Target : TargetId { kBuffer, kInbox, kCredits, kFree };
  static constexpr uint32_t kCopy = 1, kExpectedBytes = 5;
};
struct PutSendOps {
  enum Target : TargetId { kPayload, kBuffer, kPosted, kDone };
  static constexpr uint32_t kCopy = 1, kBytes = 2, kExpectedBytes = 4;
};
struct PutHeadOps {
  enum Target : TargetId { kPosted, kFree };
  static constexpr uint32_t kAllocation = 1, kGeneration = 2, kOffset = 3, kBytes = 4;
};
struct PutTailOps {
  enum Target : TargetId { kDone, kCredits, kFree };
  static constexpr uint32_t kExpectedBytes = 3;
};

Program streamEagerSend(const StreamShape& shape = {});
Program streamEagerRecv(const StreamShape& shape = {});
Program streamPutSend(const StreamShape& shape = {});
Program streamPutHead(const StreamShape& shape = {});
Program streamPutTail(const StreamShape& shape = {});

}  // namespace peerlane
