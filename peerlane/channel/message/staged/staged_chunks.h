// SPDX-License-Identifier: Apache-2.0
//
// How messages between streams are cut into chunks where they are staged through a ring of pinned
// host memory at each side, where their chunks lie in the ring, and the header of each message.
// Both sides compute the same cut and need not agree about any message. docs/wire.md has the same
// as a specification. Plain values; thread-safe: no state.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "peerlane/channel/message/host/message_format.h"

namespace peerlane {

// Sent ahead of the chunks of a message, as a message of its own. Byte map, little endian.
struct StagedHeader {
  uint64_t number = 0;  // of the message in its direction, from 0
  uint64_t bytes = 0;   // of the message
  uint64_t chunkBytes = 0;
  Part part{};
  uint32_t reserved = 0;
};
static_assert(sizeof(StagedHeader) == 32 && offsetof(StagedHeader, part) == 24);

// A side's offer in the bootstrap of two ranks. A pair is staged where both sides have rings and at
// least one has no link between the GPUs.
struct StagingOffer {
  uint64_t ringBytes = 0;  // for each direction; 0: it does not stage
  bool hasLink = false;    // between the GPUs
  // A ring is whole pages, so the lowest bit is free.
  uint64_t encode() const { return ringBytes | (hasLink ? 1 : 0); }
  static StagingOffer decode(uint64_t word) { return {word & ~uint64_t{1}, (word & 1) != 0}; }
};

struct ChunkCut {
  static constexpr uint64_t kPage = 4096;
  static constexpr uint64_t kSmallestChunk = 64 << 10;  // where the ring has room for it
  static constexpr uint64_t kParts = 8;                 // of a message that is not long
  static constexpr uint64_t kChunksInRing = 4;
  // Room for short messages and headers in each inbox slot.
  static constexpr uint32_t kInboxBytes = 1024;

  uint64_t chunkBytes = 0;
  uint64_t chunks = 0;  // one even of 0 bytes

  // Bytes of the ring that one side has for each direction of each of its pairs of ranks; 0: too
  // little memory.
  static uint64_t ringBytes(uint64_t stagingBytes, uint64_t pairs) {
    constexpr uint64_t kUnit = kPage * kChunksInRing;
    return stagingBytes / std::max<uint64_t>(1, pairs) / 2 / kUnit * kUnit;
  }
  // `ring`: of the side that has less.
  static ChunkCut of(uint64_t bytes, uint64_t ring) {
    const uint64_t most = ring / kChunksInRing;
    const uint64_t part = (bytes / kParts + kPage - 1) / kPage * kPage;
    const uint64_t chunk = std::clamp(part, std::min(kSmallestChunk, most), most);
    return {chunk, countOf(bytes, chunk)};
  }
  static uint64_t countOf(uint64_t bytes, uint64_t chunk) {
    return std::max<uint64_t>(1, bytes / chunk + (bytes % chunk != 0 ? 1 : 0));
  }
};

// Places in a ring, one after the other, none of them over its end. So the position of the next
// place is known when a message is posted, even before there is room for it.
class ChunkRing {
 public:
  explicit ChunkRing(uint64_t bytes) : bytes_(bytes) {}

  // Positions only grow; the place is `position % bytes`.
  uint64_t claim(uint64_t bytes) {
    const uint64_t length = (bytes + kAlign - 1) / kAlign * kAlign;
    const uint64_t left = bytes_ - next_ % bytes_;
    if (length > left) next_ += left;
    const uint64_t at = next_;
    next_ += length;
    return at;
  }
  uint64_t next() const { return next_; }
  // Goes back to an earlier value of next().
  void rewind(uint64_t next) { next_ = next; }
  // Whether the place is free when everything before position `used` is.
  bool fits(uint64_t position, uint64_t bytes, uint64_t used) const {
    return position + bytes <= used + bytes_;
  }
  uint64_t placeOf(uint64_t position) const { return position % bytes_; }

 private:
  static constexpr uint64_t kAlign = 256;
  const uint64_t bytes_;
  uint64_t next_ = 0;
};

}  // namespace peerlane
