// SPDX-License-Identifier: Apache-2.0
//
// MemoryRanges: which of many ranges of memory holds a piece. An agent asks for a list of pieces
// and has registered as many ranges: they are sorted once, and each piece takes a search. External
// synchronization required.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace peerlane::nixl {

class LocalMemory;

class MemoryRanges {
 public:
  struct Range {
    uint64_t address = 0;
    uint64_t bytes = 0;
    const LocalMemory* memory = nullptr;
  };

  explicit MemoryRanges(std::vector<Range> ranges) : ranges_(std::move(ranges)) {
    std::ranges::sort(ranges_, {}, &Range::address);
    for (const Range& range : ranges_)
      furthest_.push_back(
          furthest_.empty() || endOf(range) > endOf(furthest_.back()) ? range : furthest_.back());
  }

  // The memory of one that holds all of it; null: none does.
  const LocalMemory* holding(uint64_t address, uint64_t bytes) const {
    const auto behind = std::ranges::upper_bound(ranges_, address, {}, &Range::address);
    if (behind == ranges_.begin()) return nullptr;
    // Of those that do not begin behind the piece: if any holds it, this one does.
    const Range& range = furthest_[static_cast<size_t>(behind - ranges_.begin()) - 1];
    const uint64_t offset = address - range.address;
    return offset <= range.bytes && bytes <= range.bytes - offset ? range.memory : nullptr;
  }

 private:
  static uint64_t endOf(const Range& range) { return range.address + range.bytes; }

  std::vector<Range> ranges_;    // by address
  std::vector<Range> furthest_;  // for each of them, of those up to it, the one that ends last
};

}  // namespace peerlane::nixl
