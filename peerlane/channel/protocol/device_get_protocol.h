// SPDX-License-Identifier: Apache-2.0
//
// Direct get: the rendezvous-get of messages on streams: the sender says where its buffer is, and
// the receiver copies from there (nvFuser's get-zcopy). Pure functions that return a Program per
// part, as those of device_protocol.h; its messages are counted apart, as those. The sender is in
// two parts, so that a group can say where all its buffers are before it waits for anything.
// Thread-safe: no state.
//
//   send  head: wait taken >= n-15; store bytes, where; store offered = n+1
//         tail: wait taken >= n+1; accepted must be >= n+1
//   recv        wait offered >= n+1; copy from there; store accepted = n+1; store taken = n+1
//
// A receiver that refuses a message, because its length is another one, leaves out `accepted`: so
// the sender learns of it at the same moment.
#pragma once

#include "peerlane/channel/protocol/device_protocol.h"

namespace peerlane {

// Ops that differ from message to message: StepPatch::op. Expected words follow the ops.
struct GetHeadOps {
  enum Target : TargetId { kOffered, kTaken };
  static constexpr uint32_t kBytes = 1, kAllocation = 2, kGeneration = 3, kOffset = 4;
};
struct GetTailOps {
  enum Target : TargetId { kTaken };
};
struct GetRecvOps {
  enum Target : TargetId { kBuffer, kPayload, kOffered, kTaken };
  static constexpr uint32_t kCopy = 1, kAccept = 2, kExpectedBytes = 4;
};

Program streamGetHead(const StreamShape& shape = {});
Program streamGetTail(const StreamShape& shape = {});
Program streamGetRecv(const StreamShape& shape = {});

}  // namespace peerlane
