// SPDX-License-Identifier: Apache-2.0
//
// The message protocols of streams: pure functions that return a Program per side. Neither side
// tells the other how a message ended: lengths travel with the words, and each side compares them
// with its own. Thread-safe: no state.
//
// Eager messages travel to the receiver's inbox in LL packets, so there is no word after the
// payload, and no fence. Direct puts are the rendezvous-put of streams: the receiver says where its
// buffer is, and the sender copies there (nvFuser's put-zcopy). The receiver is in two parts, so
// that a group can say where all its buffers are before it waits for anything. Both sides know by
// the length which protocol a message takes, and count each apart: message n of a kind uses slot n
// mod 16 of that kind.
//
//   eager      send: wait credits >= n-15; copy payload, numbered n+1
//              recv: wait packets numbered n+1; copy out; store credits = n+1
//   direct put send: wait posted >= n+1; copy to the buffer; store bytes; store done = n+1
//              head: wait free >= n-15; store where; store posted = n+1
//              tail: wait done >= n+1; store free = n+1
//
// Messages n and n+16 may be sent, or received, on different streams. No word goes back: the side
// that stores n+17 has waited for everything that message n+16 needed, and the other side gave that
// only after it saw n+1.
#pragma once

#include "peerlane/channel/protocol/device_area.h"
#include "peerlane/program/model/program.h"

namespace peerlane {

// Both sides use the same. Values other than those of the area are for tests.
struct StreamShape {
  uint32_t slots = DeviceArea::kSlots;
  uint32_t eagerBytes = DeviceArea::kEagerBytes;
};

// Ops that differ from message to message: StepPatch::op. Expected words follow the ops.
struct EagerSendOps {
  enum Target : TargetId { kPayload, kInbox, kCredits };
  static constexpr uint32_t kCopy = 1;
};
struct EagerRecvOps {
  enum Target : TargetId { kBuffer, kInbox, kCredits };
  static constexpr uint32_t kCopy = 1;
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
  enum Target : TargetId { kDone, kFree };
  static constexpr uint32_t kExpectedBytes = 2;
};

Program streamEagerSend(const StreamShape& shape = {});
Program streamEagerRecv(const StreamShape& shape = {});
Program streamPutSend(const StreamShape& shape = {});
Program streamPutHead(const StreamShape& shape = {});
Program streamPutTail(const StreamShape& shape = {});

}  // namespace peerlane
