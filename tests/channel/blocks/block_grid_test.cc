// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/blocks/block_grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace peerlane {
namespace {

constexpr uint64_t kBlock = 4096;
constexpr size_t kCount = 2000;
constexpr uint64_t kRegionBytes = uint64_t{1} << 30;

// Blocks at random places of two grids; regions are told apart by address alone here.
class BlockGrid : public testing::Test {
 protected:
  struct Shape {
    uint64_t offset = 0;
    uint64_t stride = kBlock;
    size_t places = 2 * kCount;
  };
  std::vector<Block> blocksOf(const Shape& local, const Shape& remote, uint64_t bytes = kBlock) {
    const auto here = placesOf(local.places);
    const auto there = placesOf(remote.places);
    std::vector<Block> blocks;
    for (size_t i = 0; i < kCount; ++i)
      blocks.push_back({&local_, local.offset + here[i] * local.stride, &remote_,
                        remote.offset + there[i] * remote.stride, bytes});
    return blocks;
  }
  bool find(const std::vector<Block>& blocks, Direction direction = Direction::kPut,
            uint64_t localBytes = kRegionBytes, uint64_t remoteBytes = kRegionBytes) {
    layout_ = {};
    return findGrid(direction, blocks, localBytes, remoteBytes, layout_);
  }
  // What the layout says is what was asked, in the same order.
  void expectSame(const std::vector<Block>& blocks, Direction direction) {
    ASSERT_EQ(layout_.kind, CopyLayout::Kind::kNumbered);
    ASSERT_EQ(layout_.count, blocks.size());
    size_t i = 0;
    layout_.eachBlock([&](const Segment& segment) {
      const bool isPut = direction == Direction::kPut;
      ASSERT_EQ(segment.fromOffset, isPut ? blocks[i].localOffset : blocks[i].remoteOffset) << i;
      ASSERT_EQ(segment.toOffset, isPut ? blocks[i].remoteOffset : blocks[i].localOffset) << i;
      ASSERT_EQ(segment.bytes, blocks[i].bytes);
      ++i;
    });
    EXPECT_EQ(i, blocks.size());
    EXPECT_LT(*std::max_element(layout_.toNumbers.begin(), layout_.toNumbers.end()),
              layout_.toLimit);
    EXPECT_LT(*std::max_element(layout_.fromNumbers.begin(), layout_.fromNumbers.end()),
              layout_.fromLimit);
  }

  std::vector<size_t> placesOf(size_t count) {
    std::vector<size_t> places(count);
    std::iota(places.begin(), places.end(), size_t{0});
    std::shuffle(places.begin(), places.end(), random_);
    return places;
  }

  std::mt19937_64 random_{7};
  const Region local_;
  const RemoteRegion remote_;
  CopyLayout layout_;
};

TEST_F(BlockGrid, PagesAtAnyOffsetAndStride) {
  const Shape shapes[] = {
      {0, kBlock}, {64, kBlock}, {4095, kBlock + 1}, {17, 3 * 11003}, {1 << 20, 2 * kBlock}};
  for (const Direction direction : {Direction::kPut, Direction::kGet})
    for (const Shape& local : shapes)
      for (const Shape& remote : shapes) {
        const auto blocks = blocksOf(local, remote);
        ASSERT_TRUE(find(blocks, direction)) << local.stride << " " << remote.stride;
        expectSame(blocks, direction);
      }
}

TEST_F(BlockGrid, BlocksOfAnySize) {
  for (const uint64_t bytes : {1, 3, 132, 576, 73 << 10}) {
    const auto blocks = blocksOf({5, bytes}, {9, bytes}, bytes);
    ASSERT_TRUE(find(blocks)) << bytes;
    expectSame(blocks, Direction::kPut);
  }
}

TEST_F(BlockGrid, OneSourceMayGoToManyPlaces) {
  auto blocks = blocksOf({}, {});
  for (Block& block : blocks) block.localOffset = 8192;
  ASSERT_TRUE(find(blocks));
  expectSame(blocks, Direction::kPut);
  EXPECT_FALSE(find(blocks, Direction::kGet));  // all to one place
}

TEST_F(BlockGrid, TheLastPlaceMayEndWithTheRegion) {
  const auto blocks = blocksOf({0, kBlock, kCount}, {64, kBlock, kCount});
  EXPECT_TRUE(find(blocks, Direction::kPut, kCount * kBlock, 64 + kCount * kBlock));
  EXPECT_FALSE(find(blocks, Direction::kPut, kCount * kBlock - 1, 64 + kCount * kBlock));
  EXPECT_FALSE(find(blocks, Direction::kPut, kCount * kBlock, 63 + kCount * kBlock));
  EXPECT_FALSE(find(blocks, Direction::kPut, 10, 10));
}

TEST_F(BlockGrid, WhatIsNoGridIsLeftToOthers) {
  const Region otherLocal;
  const RemoteRegion otherRemote;
  for (const size_t at : {size_t{0}, size_t{1}, size_t{700}, kCount - 1}) {
    const auto spoilt = [&](auto change) {
      auto blocks = blocksOf({}, {});
      change(blocks[at]);
      return find(blocks);
    };
    EXPECT_FALSE(spoilt([](Block& block) { block.bytes = 4095; })) << at;
    EXPECT_FALSE(spoilt([](Block& block) { block.bytes = 0; })) << at;
    EXPECT_FALSE(spoilt([](Block& block) { block.localOffset = UINT64_MAX; })) << at;
    EXPECT_FALSE(spoilt([](Block& block) { block.localOffset = kRegionBytes; })) << at;
    EXPECT_FALSE(spoilt([](Block& block) { block.local = nullptr; })) << at;
    EXPECT_FALSE(spoilt([&](Block& block) { block.local = &otherLocal; })) << at;
    EXPECT_FALSE(spoilt([&](Block& block) { block.remote = &otherRemote; })) << at;
  }
}

// Places so close that blocks at two of them may overlap: off any grid of whole blocks.
TEST_F(BlockGrid, PlacesMayBeCloserThanABlockIsLong) {
  const auto blocksOff = [this](uint64_t unit, uint64_t bytes) {
    auto blocks = blocksOf({0, bytes + 16 * unit, kCount}, {32, bytes + 16 * unit, kCount}, bytes);
    for (Block& block : blocks) {
      block.localOffset += random_() % 17 * unit;
      block.remoteOffset += random_() % 17 * unit;
    }
    return blocks;
  };
  for (const Direction direction : {Direction::kPut, Direction::kGet}) {
    auto blocks = blocksOff(16, kBlock);
    ASSERT_TRUE(find(blocks, direction));
    expectSame(blocks, direction);
    EXPECT_LT(layout_.toStride, kBlock);
    blocks = blocksOff(1, kBlock);
    ASSERT_TRUE(find(blocks, direction));
    expectSame(blocks, direction);
    // Small blocks lie on whole words, or they are copied byte by byte.
    blocks = blocksOff(16, 512);
    ASSERT_TRUE(find(blocks, direction));
    expectSame(blocks, direction);
    EXPECT_FALSE(find(blocksOff(1, 512), direction));
    // A block over the end of another one.
    blocks = blocksOff(16, kBlock);
    for (uint64_t Block::*offset : {&Block::localOffset, &Block::remoteOffset})
      blocks[1500].*offset = blocks[3].*offset + kBlock - 16;
    EXPECT_FALSE(find(blocks, direction));
  }
}

// They would be few pieces, but for one that is off the grid.
TEST_F(BlockGrid, BlocksThatAdjoinAtClosePlacesAreLeftToPieces) {
  std::vector<Block> blocks;
  for (size_t i = 0; i < kCount; ++i)
    blocks.push_back({&local_, i * kBlock, &remote_, i * kBlock, kBlock});
  blocks[1].localOffset = kCount * kBlock + 16;
  blocks[1].remoteOffset = kCount * kBlock + 16;
  EXPECT_FALSE(find(blocks));
}

TEST_F(BlockGrid, ADestinationThatIsNamedTwiceIsFound) {
  for (const Direction direction : {Direction::kPut, Direction::kGet}) {
    auto blocks = blocksOf({}, {});
    blocks[1900].localOffset = blocks[3].localOffset;
    blocks[1900].remoteOffset = blocks[3].remoteOffset;
    EXPECT_FALSE(find(blocks, direction));
  }
  // Where the region is small, at its limits, and beyond them.
  constexpr uint64_t kPlaces = 4000;
  for (const uint64_t place : {uint64_t{0}, kPlaces - 1, kPlaces, kPlaces + 1})
    for (const bool isTwice : {false, true}) {
      auto small = blocksOf({}, {});
      for (size_t i = 0; i < small.size(); ++i) small[i].remoteOffset = (3000 - i) * kBlock;
      small[1900].remoteOffset = place * kBlock;
      small[7].remoteOffset = isTwice ? place * kBlock : 3500 * kBlock;
      EXPECT_EQ(find(small, Direction::kPut, kRegionBytes, kPlaces * kBlock),
                place < kPlaces && !isTwice)
          << place << (isTwice ? " twice" : "");
    }
  // Blocks that overlap without being equal: the stride is below their size.
  auto blocks = blocksOf({}, {});
  for (Block& block : blocks) block.bytes = kBlock + 1;
  EXPECT_FALSE(find(blocks));
}

// As the pages of a long sequence in a large cache.
TEST_F(BlockGrid, BlocksInOrderMayLieFarApart) {
  auto blocks = blocksOf({}, {});
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i].remoteOffset = i * 5000 * kBlock;
  EXPECT_TRUE(find(blocks, Direction::kPut, kRegionBytes, blocks.size() * 5000 * kBlock));
}

// As pieces they are few, and travel with the launch.
TEST_F(BlockGrid, BlocksThatAdjoinAreBetterAsPieces) {
  auto blocks = blocksOf({}, {});
  for (size_t i = 0; i < blocks.size(); ++i) {
    const size_t place = i + i / 100;  // 20 runs
    blocks[i].localOffset = blocks[i].remoteOffset = place * kBlock;
  }
  EXPECT_FALSE(find(blocks));
  // In order, but with gaps at one side: every block is a piece of its own.
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i].remoteOffset = i * 2 * kBlock;
  ASSERT_TRUE(find(blocks));
  expectSame(blocks, Direction::kPut);
}

TEST_F(BlockGrid, FewBlocksAreBetterAsPieces) {
  auto blocks = blocksOf({}, {});
  blocks.resize(kLeastGridBlocks - 1);
  EXPECT_FALSE(find(blocks));
  blocks = blocksOf({}, {});
  blocks.resize(kLeastGridBlocks);
  EXPECT_TRUE(find(blocks));
}

// Numbers that few of the blocks that are looked at first would show.
TEST_F(BlockGrid, AStrideThatIsGuessedTooLargeIsNoGrid) {
  auto blocks = blocksOf({0, 2 * kBlock}, {0, 2 * kBlock});
  blocks[1999].localOffset += kBlock;
  EXPECT_FALSE(find(blocks));
}

}  // namespace
}  // namespace peerlane
