// SPDX-License-Identifier: Apache-2.0
//
// Which lists are refused because two of their blocks write the same bytes: as a comparison of
// every block with every other one says, for blocks of all kinds.
#include "peerlane/channel/blocks/block_overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "peerlane/channel/blocks/granule_table.h"
#include "peerlane/channel/blocks/written_order.h"
#include "peerlane/core/counted_list.h"

namespace peerlane {
namespace {

using Segments = std::vector<Segment>;

bool overlap(const Segment& a, const Segment& b) {
  return a.to == b.to && a.toOffset < b.toOffset + b.bytes && b.toOffset < a.toOffset + a.bytes;
}

bool anyOverlap(const Segments& blocks) {
  for (size_t i = 0; i < blocks.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (overlap(blocks[i], blocks[j])) return true;
  return false;
}

WrittenExtent extentOf(const Segments& blocks) {
  WrittenExtent extent;
  for (const Segment& block : blocks) {
    extent.addTarget(block.to);
    extent.add({&block, 1});
  }
  return extent;
}

Status check(const Segments& blocks) {
  return checkDestinations(blocks, extentOf(blocks));
}

// The table is not asked for lists that it does not suit, and where it errs to the one side, only
// time is lost: so it is looked at by itself.
void expectTableExact(const Segments& blocks, const std::string& what) {
  const WrittenExtent extent = extentOf(blocks);
  if (!GranuleTable::suits(extent, blocks.size())) return;
  EXPECT_EQ(GranuleTable::doOverlap(blocks, extent), anyOverlap(blocks)) << what;
}

// The verdict of a comparison of all pairs, and an error that names two blocks that do overlap.
void expectExact(const Segments& blocks, const std::string& what) {
  expectTableExact(blocks, what);
  const Status checked = check(blocks);
  ASSERT_EQ(checked.isOk(), !anyOverlap(blocks)) << what << ": " << checked.toString();
  // Lists that say so are not looked at.
  ASSERT_TRUE(checked.isOk() || !extentOf(blocks).isInOrder) << what;
  if (checked.isOk()) return;
  size_t first = 0, second = 0;
  ASSERT_EQ(std::sscanf(std::string(checked.message()).c_str(), "blocks %zu and %zu of the list",
                        &first, &second),
            2)
      << checked.toString();
  ASSERT_LT(first, second);
  ASSERT_LT(second, blocks.size());
  EXPECT_TRUE(overlap(blocks[first], blocks[second])) << what << ": " << checked.toString();
}

class BlockOverlap : public testing::Test {
 protected:
  // What the lists of one kind are made of.
  struct Kind {
    const char* name;
    uint64_t leastBytes, mostBytes;
    uint64_t mostGap;      // between neighbours; 0: they touch
    TargetId targets = 1;  // blocks go round among them
    uint64_t from = 0;     // where they begin
  };

  uint64_t upTo(uint64_t most) { return most == 0 ? 0 : random_() % (most + 1); }
  // Blocks that do not overlap, in any order.
  Segments apart(const Kind& kind, size_t count) {
    std::vector<uint64_t> next(kind.targets, kind.from);
    Segments blocks;
    for (size_t i = 0; i < count; ++i) {
      const auto to = static_cast<TargetId>(i % kind.targets);
      const uint64_t bytes = kind.leastBytes + upTo(kind.mostBytes - kind.leastBytes);
      // Half of them touch the one before.
      next[to] += upTo(1) == 0 ? 0 : upTo(kind.mostGap);
      blocks.push_back(
          {.to = static_cast<TargetId>(3 + 7 * to), .toOffset = next[to], .bytes = bytes});
      next[to] += bytes;
    }
    std::shuffle(blocks.begin(), blocks.end(), random_);
    return blocks;
  }
  size_t any(const Segments& blocks) { return upTo(blocks.size() - 1); }

  std::mt19937_64 random_{20261128};
};

constexpr uint64_t kHuge = uint64_t{1} << 62;

TEST_F(BlockOverlap, IsFoundWhereverItIs) {
  const Kind kinds[] = {{"pages", 4096, 4096, 0},
                        {"pages off any grid", 4096, 4096, 255},
                        {"any size and offset", 1, 5000, 300},
                        {"single bytes", 1, 1, 0},
                        {"some much larger", 1, 1 << 20, 0},
                        {"of many sizes", 2048, 4096, 300},
                        {"five sizes above the least", 100, 500, 20},
                        {"larger than 64 KiB", 66000, 200000, 3000},
                        {"far apart", 512, 65536, uint64_t{1} << 32},
                        {"several regions", 100, 400, 50, 5},
                        {"a span of nearly 2^63", 1, 64, uint64_t{1} << 53},
                        {"at the end of all offsets", 1, 64, 64, 2, kHuge}};
  for (const Kind& kind : kinds)
    for (const size_t count : {2, 3, 63, 64, 65, 200, 500})
      for (int round = 0; round < 5; ++round) {
        const std::string what = std::string(kind.name) + ", " + std::to_string(count);
        const Segments whole = apart(kind, count);
        expectExact(whole, what);
        Segments twice = whole;
        twice[any(twice)] = twice[any(twice)];
        expectExact(twice, what + ", one twice");
        Segments grown = whole;
        grown[any(grown)].bytes += 1;
        expectExact(grown, what + ", one grown by a byte");
        Segments moved = whole;
        Segment& block = moved[any(moved)];
        block.toOffset -= std::min<uint64_t>(block.toOffset, 1);
        expectExact(moved, what + ", one moved by a byte");
        Segments covered = whole;
        covered[any(covered)].bytes += upTo(uint64_t{1} << 20);
        expectExact(covered, what + ", one over others");
        if (HasFailure()) return;
      }
}

// Blocks of one size, of the least difference to whole granules and to each other.
TEST_F(BlockOverlap, IsFoundByPlaces) {
  for (const uint64_t bytes : {16, 512, 4095, 4096, 4097, 65535, 65536, 1 << 20})
    for (const uint64_t stride : {1, 16, 48})
      for (int round = 0; round < 10; ++round) {
        const uint64_t least = (bytes + stride - 1) / stride;  // the least distance of two apart
        std::vector<uint32_t> places;
        for (uint32_t at = 7; places.size() < 300; at += static_cast<uint32_t>(least + upTo(least)))
          places.push_back(at);
        std::shuffle(places.begin(), places.end(), random_);
        const std::string what = std::to_string(bytes) + " at " + std::to_string(stride);
        EXPECT_TRUE(GranuleTable::areApart(places, stride, bytes)) << what;
        const uint32_t kept = places[upTo(places.size() - 1)];
        for (const uint64_t away : {uint64_t{0}, uint64_t{1}, least / 2, least - 1}) {
          places.push_back(kept + static_cast<uint32_t>(std::min(away, least - 1)));
          EXPECT_FALSE(GranuleTable::areApart(places, stride, bytes)) << what << ", " << away;
          places.pop_back();
        }
      }
  // Too far apart for a table: not said to be apart.
  EXPECT_FALSE(GranuleTable::areApart(std::vector<uint32_t>{0, 1u << 31}, 1, 16));
}

// Which lists are not sorted, and so are checked in half of the time.
TEST_F(BlockOverlap, ListsWithoutHolesNeedNoOrder) {
  const auto suits = [this](const Kind& kind) {
    const Segments blocks = apart(kind, 2000);
    return GranuleTable::suits(extentOf(blocks), blocks.size());
  };
  EXPECT_TRUE(suits({"off any grid", 4096, 4096, 255}));
  EXPECT_TRUE(suits({"of many sizes", 2048, 4096, 500}));
  EXPECT_TRUE(suits({"large", 1 << 20, 3 << 20, 500}));
  EXPECT_FALSE(suits({"some much larger", 1, 1 << 20, 0}));
  EXPECT_FALSE(suits({"far apart", 512, 65536, uint64_t{1} << 32}));
}

// Blocks of one byte from one end of 64 bits to the other: their numbers and places fill more than
// a key has bits.
TEST_F(BlockOverlap, IsFoundInSpansThatAreTooWideForDigits) {
  Segments blocks;
  for (uint64_t i = 0; i < 200; ++i)
    blocks.push_back({.to = 1, .toOffset = random_() / 2, .bytes = 1});
  blocks.push_back({.to = 1, .toOffset = 0, .bytes = 1});
  blocks.push_back({.to = 9, .toOffset = UINT64_MAX - 1, .bytes = 1});
  expectExact(blocks, "wide");
  blocks.push_back(blocks[77]);
  expectExact(blocks, "wide, one twice");
}

// Sorting compares each of 16384 blocks with some twenty others.
TEST_F(BlockOverlap, IsSoughtInFewStepsForEachBlock) {
  constexpr size_t kBlocks = 16384;
  constexpr uint64_t kMostSteps = 8;  // bounds the passes over all blocks
  const Kind kinds[] = {{"off any grid", 4096, 4096, 255},
                        {"any size and offset", 512, 65536, 4000},
                        {"far apart", 512, 65536, 1 << 20},
                        {"several regions", 100, 400, 50, 60}};
  for (const Kind& kind : kinds) {
    const Segments blocks = apart(kind, kBlocks);
    const uint64_t before = Steps::taken();
    EXPECT_TRUE(check(blocks).isOk()) << kind.name;
    const uint64_t steps = Steps::taken() - before;
    EXPECT_GE(steps, kBlocks) << "the steps are not counted";
    EXPECT_LE(steps, kMostSteps * kBlocks) << kind.name;
  }
}

// Every order of the same blocks leads to one order.
TEST_F(BlockOverlap, TheOrderIsThatOfTheBytes) {
  for (const size_t count : {1, 2, 64, 3000}) {
    const Segments blocks = apart({"several regions", 1, 9000, 700, 3}, count);
    const WrittenOrder order(blocks, extentOf(blocks));
    std::vector<bool> isThere(count, false);
    for (size_t i = 0; i < count; ++i) {
      ASSERT_LT(order[i], count);
      isThere[order[i]] = true;
      if (i > 0) {
        ASSERT_TRUE(writesAfter(blocks[order[i]], blocks[order[i - 1]])) << i;
      }
    }
    EXPECT_TRUE(std::all_of(isThere.begin(), isThere.end(), [](bool is) { return is; }));
  }
}

}  // namespace
}  // namespace peerlane
