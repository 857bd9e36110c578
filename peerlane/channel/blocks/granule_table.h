// SPDX-License-Identifier: Apache-2.0
//
// GranuleTable: whether two blocks of a list write the same bytes, without putting the blocks in
// order. The bytes between the first and the last are parted into granules, no larger than any
// block. The table has a place for each granule, and each block is written to the place of the one
// in which it begins: two of one granule overlap, and then the table has fewer than there are. One
// look at the table from its begin to its end meets all others in their order. It does not say
// which blocks overlap. Thread-safe: no state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "peerlane/channel/blocks/block_overlap.h"
#include "peerlane/program/model/program.h"

namespace peerlane {

class GranuleTable {
 public:
  // Blocks that lie not too far apart for their size: to look at the table would take longer than
  // to sort. `extent`: of so many blocks.
  static bool suits(const WrittenExtent& extent, size_t blocks);
  // Requires: suits.
  static bool doOverlap(const std::vector<Segment>& blocks, const WrittenExtent& extent);
  // Of at least one block, all of `bytes`, by the numbers of their places, which are `stride`
  // apart. False also where the table does not suit.
  static bool areApart(std::span<const uint32_t> places, uint64_t stride, uint64_t bytes);
};

}  // namespace peerlane
