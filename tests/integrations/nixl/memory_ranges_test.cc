// SPDX-License-Identifier: Apache-2.0
#include "integrations/nixl/memory_ranges.h"

#include <gtest/gtest.h>

#include <random>

namespace peerlane::nixl {
namespace {

// Looked at by its address alone.
const LocalMemory* memoryOf(size_t number) {
  return reinterpret_cast<const LocalMemory*>(0x1000 * (number + 1));
}

TEST(MemoryRanges, FindOneThatHoldsThePiece) {
  const MemoryRanges ranges({{100, 50, memoryOf(0)}, {200, 10, memoryOf(1)}});
  EXPECT_EQ(ranges.holding(100, 50), memoryOf(0));
  EXPECT_EQ(ranges.holding(149, 1), memoryOf(0));
  EXPECT_EQ(ranges.holding(150, 0), memoryOf(0));
  EXPECT_EQ(ranges.holding(149, 2), nullptr);
  EXPECT_EQ(ranges.holding(99, 1), nullptr);
  EXPECT_EQ(ranges.holding(205, 5), memoryOf(1));
  EXPECT_EQ(ranges.holding(140, 70), nullptr) << "no one range holds all of it";
  EXPECT_EQ(ranges.holding(200, UINT64_MAX), nullptr);
  EXPECT_EQ(MemoryRanges({}).holding(1, 1), nullptr);
}

// They may overlap, or one be within another.
TEST(MemoryRanges, FindWhatALookAtEachFinds) {
  std::minstd_rand random(5);
  for (int round = 0; round < 100; ++round) {
    std::vector<MemoryRanges::Range> all;
    for (size_t i = 0; i < 20; ++i) all.push_back({random() % 100, random() % 30, memoryOf(i)});
    const MemoryRanges ranges(all);
    for (int piece = 0; piece < 100; ++piece) {
      const uint64_t address = random() % 140, bytes = random() % 20;
      const auto holds = [&](const MemoryRanges::Range& range) {
        return address >= range.address && address + bytes <= range.address + range.bytes;
      };
      const LocalMemory* const found = ranges.holding(address, bytes);
      const bool isThere = std::ranges::any_of(all, holds);
      ASSERT_EQ(found != nullptr, isThere) << address << "+" << bytes;
      if (found == nullptr) continue;
      EXPECT_TRUE(std::ranges::any_of(all, [&](const MemoryRanges::Range& range) {
        return range.memory == found && holds(range);
      }));
    }
  }
}

}  // namespace
}  // namespace peerlane::nixl
