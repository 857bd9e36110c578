// SPDX-License-Identifier: Apache-2.0
//
// Overlaps among the blocks of one list: two blocks that write the same bytes leave it to chance
// which of them stays, so such lists are refused. Thread-safe: no state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "peerlane/channel/blocks/block_list.h"
#include "peerlane/core/status.h"

namespace peerlane {

// Where the blocks of a list write, gathered in the one walk that checks the list.
struct WrittenGrid {
  explicit WrittenGrid(const Segment& segment)
      : to(segment.to), block(segment.bytes), first(segment.toOffset), last(first) {}
  void add(const Segment& segment) {
    isUniform = isUniform && segment.to == to && segment.bytes == block;
    first = std::min(first, segment.toOffset);
    last = std::max(last, segment.toOffset);
  }

  TargetId to;
  uint64_t block;
  uint64_t first, last;   // offsets of blocks
  bool isUniform = true;  // one target, one size
};

// The second block writes after all bytes that the first one writes. A list in which this holds
// for every two neighbours has no overlap.
inline bool writesAfter(const Segment& second, const Segment& first) {
  return second.to != first.to ? second.to > first.to
                               : second.toOffset >= first.toOffset + first.bytes;
}

// For a list that is not in that order. kInvalidArgument naming two blocks that overlap.
Status checkDestinations(const std::vector<Segment>& blocks, const WrittenGrid& grid);

// For a peer that is this process: source and destination may then be the same memory, and memcpy
// must not see that. kInvalidArgument where they overlap. Indexed blocks are not looked at: their
// numbers come later, and equal strides keep them apart or equal.
Status checkSources(const BlockList& blocks);

}  // namespace peerlane
