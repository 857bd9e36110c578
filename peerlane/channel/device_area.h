// SPDX-License-Identifier: Apache-2.0
//
// DeviceArea: memory of a GPU that one rank keeps for messages with another on streams; the peer's
// GPU writes it, but for `free`. A slot belongs to every 16th message of its protocol: eager ones
// (credits, inbox) and direct ones (the others) are counted by themselves. docs/wire.md has the
// same as a specification. Plain numbers.
//       0  credits  u64 each: eager messages that the peer has taken out of its own slot
//    1024  posted   {u64 sequence, allocation, generation, offset, bytes}: where this side may put
//    2048  done     {u64 sequence, bytes}: what the peer has put into memory of this side
//    3072  free     u64 each, this side's own: puts that left a slot
//    4096  inbox    numbered units (program/op.h) of eager messages
#pragma once

#include <cstdint>

#include "peerlane/program/op.h"

namespace peerlane {

struct DeviceArea {
  static constexpr uint32_t kSlots = 16;
  static constexpr uint32_t kWordStrideBytes = 64;
  static constexpr uint64_t kCreditsOffset = 0;
  static constexpr uint64_t kPostedOffset = uint64_t{kSlots} * kWordStrideBytes;
  static constexpr uint64_t kDoneOffset = 2 * kPostedOffset;
  static constexpr uint64_t kFreeOffset = 3 * kPostedOffset;
  static constexpr uint64_t kInboxOffset = 4 * kPostedOffset;
  // Longer messages go straight into the receiver's memory.
  static constexpr uint32_t kEagerBytes = 1024;
  static constexpr uint32_t kInboxStrideBytes = kEagerBytes / kUnitPayloadBytes * kUnitBytes;
  static constexpr uint64_t kBytes = kInboxOffset + uint64_t{kSlots} * kInboxStrideBytes;

  // In posted and done slots.
  static constexpr uint32_t kAllocationAt = 8;
  static constexpr uint32_t kGenerationAt = 16;
  static constexpr uint32_t kOffsetAt = 24;
  static constexpr uint32_t kPostedBytesAt = 32;
  static constexpr uint32_t kBytesAt = 8;
};
static_assert(DeviceArea::kBytes <= 64 << 10, "device memory per peer");

}  // namespace peerlane
