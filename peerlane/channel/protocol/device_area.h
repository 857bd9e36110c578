// SPDX-License-Identifier: Apache-2.0
//
// DeviceArea: memory of a GPU that one rank keeps for messages with another rank on streams. The
// peer's GPU writes it, except for `free` and `listFree`. A slot belongs to every 16th message of
// its protocol, of lists to every 4th: eager messages (credits, inbox), puts (posted, done, free),
// gets (offered, taken) and lists (the others) are counted apart. docs/wire.md has the same as a
// specification. Plain numbers.
//       0  credits  u64 each: eager messages that the peer has taken out of its own slot
//    1024  posted   {u64 sequence, allocation, generation, offset, bytes}: where this side may put
//    2048  done     {u64 sequence, bytes}: what the peer has put into memory of this side
//    3072  free     u64 each, this side's own: puts that left a slot
//    4096  inbox    LL packets (program/model/op.h) of eager messages
//   36864  offered  {u64 sequence, bytes, allocation, generation, offset}: what this side may get
//   37888  taken    {u64 sequence, accepted}: what the peer has got from here, or refused; the last
//                   one that it has not refused
//   38912  listPosted {u64 sequence, shape, regions}: where this side may put a list is in `list`
//   39168  listDone   {u64 sequence, shape}: what list the peer has put into memory of this side
//   39424  listFree   u64 each, this side's own: lists that left a slot
//   39680  list       names of regions and places in them (program/device/piece_names.h)
#pragma once

#include <cstdint>

#include "peerlane/program/device/piece_names.h"
#include "peerlane/program/model/op.h"

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
  static constexpr uint32_t kInboxStrideBytes = kEagerBytes / kPacketPayloadBytes * kPacketBytes;
  static constexpr uint64_t kOfferedOffset = kInboxOffset + uint64_t{kSlots} * kInboxStrideBytes;
  static constexpr uint64_t kTakenOffset = kOfferedOffset + kPostedOffset;
  // Of lists.
  static constexpr uint32_t kListSlots = 4;
  static constexpr uint64_t kListWordsBytes = uint64_t{kListSlots} * kWordStrideBytes;
  static constexpr uint64_t kListPostedOffset = kTakenOffset + kPostedOffset;
  static constexpr uint64_t kListDoneOffset = kListPostedOffset + kListWordsBytes;
  static constexpr uint64_t kListFreeOffset = kListDoneOffset + kListWordsBytes;
  static constexpr uint64_t kListOffset = kListFreeOffset + kListWordsBytes;
  static constexpr uint32_t kListStrideBytes = PieceNames::kMostBytes;
  static constexpr uint64_t kBytes = kListOffset + uint64_t{kListSlots} * kListStrideBytes;

  // In posted and done slots.
  static constexpr uint32_t kAllocationAt = 8;
  static constexpr uint32_t kGenerationAt = 16;
  static constexpr uint32_t kOffsetAt = 24;
  static constexpr uint32_t kPostedBytesAt = 32;
  static constexpr uint32_t kBytesAt = 8;
  // In offered slots, after the bytes.
  static constexpr uint32_t kOfferedAllocationAt = 16;
  static constexpr uint32_t kOfferedGenerationAt = 24;
  static constexpr uint32_t kOfferedOffsetAt = 32;
  // In the allocation that an offer names: it is read, not written.
  static constexpr uint64_t kToRead = uint64_t{1} << 63;
  // In taken slots.
  static constexpr uint32_t kAcceptedAt = 8;
  // In listPosted and listDone slots.
  static constexpr uint32_t kShapeAt = 8;
  static constexpr uint32_t kRegionsAt = 16;
};
static_assert(DeviceArea::kBytes == 187136, "docs/wire.md; device memory per peer");

}  // namespace peerlane
