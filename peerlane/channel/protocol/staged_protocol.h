// SPDX-License-Identifier: Apache-2.0
//
// Staging ring: a payload of any size goes through a ring of chunks at the receiver. For memory
// that cannot be exported and links that cannot map. Thread-safe: no state.
#pragma once

#include "peerlane/program/model/program.h"

namespace peerlane {

struct StagedShape {
  uint32_t slots = 0;
  uint32_t chunkBytes = 0;  // also the stride of the ring
  uint32_t chunks = 1;      // moved by one execution; each takes the next slot
  // Size of the last chunk of the execution, 1 .. chunkBytes; 0 means chunkBytes.
  uint32_t lastChunkBytes = 0;
};

enum StagedSenderTarget : TargetId {
  kStagedSenderPayload,  // local; chunk i of the execution lies at i * chunkBytes
  kStagedSenderRing,     // remote ring
  kStagedSenderData,     // remote counter: chunks written
  kStagedSenderCredit,   // local counter: chunks taken out by the receiver
  kStagedSenderTargets
};
enum StagedReceiverTarget : TargetId {
  kStagedReceiverBuffer,  // local; as the sender's payload
  kStagedReceiverRing,    // local ring
  kStagedReceiverData,    // local counter
  kStagedReceiverCredit,  // remote counter
  kStagedReceiverTargets
};

// The cursor of lane 0 counts chunks.
Program stagedSender(const StagedShape& shape);
Program stagedReceiver(const StagedShape& shape);

}  // namespace peerlane
