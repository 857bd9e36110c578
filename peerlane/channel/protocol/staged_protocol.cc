// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/protocol/staged_protocol.h"

namespace peerlane {
namespace {

uint64_t bytesOf(const StagedShape& shape, uint32_t chunk) {
  const bool isLast = chunk + 1 == shape.chunks;
  return isLast && shape.lastChunkBytes > 0 ? shape.lastChunkBytes : shape.chunkBytes;
}

Target ringAt(Side side, const StagedShape& shape) {
  return {.name = "ring",
          .side = side,
          .cursor = 0,
          .slots = shape.slots,
          .strideBytes = shape.chunkBytes};
}

}  // namespace

Program stagedSender(const StagedShape& shape) {
  ProgramBuilder program("staged-send");
  program.cursor(shape.chunks);
  program.local("payload");
  program.target(ringAt(Side::kRemote, shape));
  program.remote("data");
  program.local("credit");
  for (uint32_t i = 0; i < shape.chunks; ++i) {
    const int32_t slotDelta = static_cast<int32_t>(i);
    const Operand written{.cursor = 0, .delta = i + int64_t{1}};
    const Operand oneTurnAgo{.cursor = 0, .delta = written.delta - shape.slots};
    program.wait({.target = kStagedSenderCredit}, oneTurnAgo)
        .copy({.target = kStagedSenderRing, .slotDelta = slotDelta},
              {.target = kStagedSenderPayload, .offset = uint64_t{i} * shape.chunkBytes},
              bytesOf(shape, i))
        .store({.target = kStagedSenderData}, written, Order::kRelease);
  }
  return program.build();
}

Program stagedReceiver(const StagedShape& shape) {
  ProgramBuilder program("staged-recv");
  program.cursor(shape.chunks);
  program.local("buffer");
  program.target(ringAt(Side::kLocal, shape));
  program.local("data");
  program.remote("credit");
  for (uint32_t i = 0; i < shape.chunks; ++i) {
    const int32_t slotDelta = static_cast<int32_t>(i);
    const Operand count{.cursor = 0, .delta = i + int64_t{1}};
    program.wait({.target = kStagedReceiverData}, count)
        .copy({.target = kStagedReceiverBuffer, .offset = uint64_t{i} * shape.chunkBytes},
              {.target = kStagedReceiverRing, .slotDelta = slotDelta}, bytesOf(shape, i))
        .store({.target = kStagedReceiverCredit}, count, Order::kRelease);
  }
  return program.build();
}

}  // namespace peerlane
