// SPDX-License-Identifier: Apache-2.0
#include "tools/memory/byte_pattern.h"

#include <gtest/gtest.h>

#include "tools/trial/trial_shape.h"

namespace peerlane {
namespace {

TEST(BytePattern, FindsEachWrongByte) {
  std::vector<std::byte> bytes(1003);
  fillPattern(bytes, 7);
  EXPECT_EQ(countWrong(bytes, 7), 0u);
  for (size_t at : {0u, 1u, 8u, 500u, 1002u}) {
    bytes[at] ^= std::byte{1};
    EXPECT_EQ(countWrong(bytes, 7), 1u) << at;
    bytes[at] ^= std::byte{1};
  }
}

TEST(BytePattern, AnotherSeedIsWrongNearlyEverywhere) {
  std::vector<std::byte> bytes(4096);
  fillPattern(bytes, 7);
  EXPECT_GT(countWrong(bytes, 8), 4000u);
  EXPECT_GT(countWrong(bytes, 7, 8), 4000u) << "the same sequence, shifted";
}

TEST(BytePattern, PiecesMakeTheWhole) {
  std::vector<std::byte> bytes(100);
  const std::span<std::byte> all(bytes);
  for (size_t from = 0; from < 100; from += 7)
    fillPattern(all.subspan(from, std::min<size_t>(7, 100 - from)), 3, from);
  EXPECT_EQ(countWrong(bytes, 3), 0u);
}

class TrialShapes : public testing::Test {
 protected:
  void SetUp() override {
    destination_.resize(shape_.regionBytes());
    std::vector<std::byte> source(shape_.regionBytes());
    fillPattern(source, kSeed);
    fillPattern(destination_, kOld);
    for (uint64_t i = 0; i < shape_.count; ++i)
      std::copy_n(
          source.begin() + static_cast<std::ptrdiff_t>(i * shape_.stride()), shape_.blockBytes,
          destination_.begin() + static_cast<std::ptrdiff_t>(shape_.target(i) * shape_.stride()));
  }
  static constexpr uint64_t kSeed = 10;
  static constexpr uint64_t kOld = 11;
  const TrialShape shape_{.blockBytes = 100, .count = 128, .gapBytes = 12};
  std::vector<std::byte> destination_;
};

TEST_F(TrialShapes, AcceptTheRightBytes) {
  EXPECT_EQ(countWrongBlocks(destination_, shape_, kSeed, kOld), 0u);
}

TEST_F(TrialShapes, NoticeABlockThatDidNotCome) {
  fillPattern(std::span(destination_).subspan(shape_.stride() * 5, 100), kOld, shape_.stride() * 5);
  EXPECT_GT(countWrongBlocks(destination_, shape_, kSeed, kOld), 90u);
}

TEST_F(TrialShapes, NoticeWhatWentBeyondABlock) {
  destination_[100] ^= std::byte{0x80};
  EXPECT_EQ(countWrongBlocks(destination_, shape_, kSeed, kOld), 1u);
}

TEST_F(TrialShapes, NoticeExchangedBlocks) {
  std::swap_ranges(destination_.begin(), destination_.begin() + 100,
                   destination_.begin() + static_cast<std::ptrdiff_t>(shape_.stride()));
  EXPECT_GT(countWrongBlocks(destination_, shape_, kSeed, kOld), 180u);
}

TEST(TrialShape, GivesEachBlockAPlaceOfItsOwn) {
  for (uint64_t count : {1u, 2u, 37u, 74u, 128u}) {
    const TrialShape shape{.blockBytes = 1, .count = count};
    std::vector<bool> taken(count);
    for (uint64_t i = 0; i < count; ++i) taken.at(shape.target(i)) = true;
    EXPECT_TRUE(std::all_of(taken.begin(), taken.end(), [](bool t) { return t; })) << count;
  }
}

}  // namespace
}  // namespace peerlane
