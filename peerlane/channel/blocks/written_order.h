// SPDX-License-Identifier: Apache-2.0
//
// WrittenOrder: the blocks of a list in the order of the bytes that they write. Long lists are not
// compared block by block: each gets the number of the granule in which it begins, a power of two
// that is no larger than any block, and the numbers are sorted by their digits, which takes as long
// whatever the order was. Two blocks that begin in one granule overlap, so nothing is lost where
// their order stays open. Lives on the stack of one call. External synchronization required.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "peerlane/channel/blocks/block_overlap.h"
#include "peerlane/core/spare_vector.h"
#include "peerlane/program/model/program.h"

namespace peerlane {

class WrittenOrder {
 public:
  // `extent`: of these blocks.
  WrittenOrder(const std::vector<Segment>& blocks, const WrittenExtent& extent);
  ~WrittenOrder() { SpareVector<uint64_t>::giveBack(std::move(room_)); }
  WrittenOrder(const WrittenOrder&) = delete;
  WrittenOrder& operator=(const WrittenOrder&) = delete;

  // The place in the list of the block that comes as number `i`.
  size_t operator[](size_t i) const { return keys_[i] & places_; }

 private:
  void byComparing(const std::vector<Segment>& blocks);
  void byDigits(const std::vector<Segment>& blocks, const WrittenExtent& extent, int placeBits,
                int keyBits);

  // Keys, and room for as many.
  std::vector<uint64_t> room_;
  const uint64_t* keys_ = nullptr;
  uint64_t places_ = ~uint64_t{0};  // these bits of a key are a place
};

}  // namespace peerlane
