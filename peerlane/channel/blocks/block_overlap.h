// SPDX-License-Identifier: Apache-2.0
//
// Overlaps among the blocks of one list: two blocks that write the same bytes leave it to chance
// which of them stays, so such lists are refused. Thread-safe: no state.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "peerlane/channel/blocks/block_list.h"
#include "peerlane/core/status.h"

namespace peerlane {

// Where the blocks of a list write, gathered in the one walk that checks the list.
struct WrittenExtent {
  // Of the first segment, and of each whose target is not that of the segment before.
  void addTarget(TargetId to) {
    leastTo = std::min(leastTo, to);
    mostTo = std::max(mostTo, to);
  }
  void add(const Segment& segment) {
    least = std::min(least, segment.bytes);
    most = std::max(most, segment.bytes);
    first = std::min(first, segment.toOffset);
    last = std::max(last, segment.toOffset);
  }
  bool isUniform() const { return leastTo == mostTo && least == most; }

  // Granules of a power of two of bytes, no larger than any block. They are numbered from that of
  // the first offset on; the target comes in the bits above.
  int granuleShift() const { return std::bit_width(least) - 1; }
  int granuleBits() const {
    return std::bit_width((last >> granuleShift()) - (first >> granuleShift()));
  }
  int targetBits() const { return std::bit_width(unsigned{mostTo} - leastTo); }

  TargetId leastTo = kNoTarget, mostTo = 0;
  uint64_t least = UINT64_MAX, most = 0;  // bytes of a block
  uint64_t first = UINT64_MAX, last = 0;  // offsets of blocks
};

// The second block writes after all bytes that the first one writes. A list in which this holds
// for every two neighbours has no overlap.
inline bool writesAfter(const Segment& second, const Segment& first) {
  return second.to != first.to ? second.to > first.to
                               : second.toOffset >= first.toOffset + first.bytes;
}

// For a list that is not in that order. kInvalidArgument naming two blocks that overlap.
Status checkDestinations(const std::vector<Segment>& blocks, const WrittenExtent& extent);

// For a peer that is this process: source and destination may then be the same memory, and memcpy
// must not see that. kInvalidArgument where they overlap. Indexed blocks are not looked at: their
// numbers come later, and equal strides keep them apart or equal.
Status checkSources(const BlockList& blocks);

}  // namespace peerlane
