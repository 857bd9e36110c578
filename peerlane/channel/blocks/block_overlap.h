// SPDX-License-Identifier: Apache-2.0
//
// Overlaps among the blocks of one list: two blocks that write the same bytes leave it to chance
// which of them stays, so such lists are refused. Thread-safe: no state.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "peerlane/channel/blocks/block_list.h"
#include "peerlane/core/status.h"

namespace peerlane {

// Where the blocks of a list write, gathered as the list is checked.
struct WrittenExtent {
  // Before the first segment that writes to a target.
  void addTarget(TargetId to) {
    isInOrder = isInOrder && (most == 0 || to >= lastTo);
    if (to != lastTo) end = 0;
    lastTo = to;
    leastTo = std::min(leastTo, to);
    mostTo = std::max(mostTo, to);
  }
  // Segments that write to that target, after those added before.
  void add(std::span<const Segment> segments);
  bool isUniform() const { return leastTo == mostTo && least == most; }

  // Granules of a power of two of bytes, no larger than any block. They are numbered from that of
  // the first offset on; the target comes in the bits above.
  int granuleShift() const { return std::bit_width(least) - 1; }
  int granuleBits() const {
    return std::bit_width((last >> granuleShift()) - (first >> granuleShift()));
  }
  int targetBits() const { return std::bit_width(unsigned{mostTo} - leastTo); }

  // Each block begins after all bytes that the one before it writes: nothing overlaps.
  bool isInOrder = true;
  TargetId leastTo = kNoTarget, mostTo = 0, lastTo = 0;
  uint64_t least = UINT64_MAX, most = 0;  // bytes of a block
  uint64_t first = UINT64_MAX, last = 0;  // offsets of blocks
  uint64_t end = 0;                       // of the block added last
  uint64_t bytes = 0;                     // of all
};

// The second block writes after all bytes that the first one writes.
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
