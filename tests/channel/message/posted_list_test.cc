// SPDX-License-Identifier: Apache-2.0
//
// Lists of pieces as they are told to the other side: golden shape and places, what is refused.
#include "peerlane/channel/message/stream/posted_list.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <vector>

#include "peerlane/program/device/piece_names.h"
#include "tests/core/expect_ok.h"

namespace peerlane {
namespace {

std::byte memory[1 << 20];

struct Regions {
  Regions() {
    for (size_t i = 0; i < records.size(); ++i) {
      records[i].allocation = 0x100 + i;
      records[i].generation = 0x200 + i;
      records[i].base = memory + 1024 * i;
      records[i].bytes = sizeof(memory) - 1024 * i;
    }
  }
  std::array<RegionRecord, 300> records;
};

uint64_t shapeOf(const std::vector<uint64_t>& sizes) {
  uint64_t shape = shapeBegin(sizes.size());
  for (const uint64_t bytes : sizes) shape = shapeWith(shape, bytes);
  return shapeEnd(shape);
}

TEST(PostedList, GoldenShape) {
  EXPECT_EQ(0x144e68af6a3e921eu, shapeOf({1, 4096, 524288}));
}

TEST(PostedList, ShapesOfNeighboursDiffer) {
  std::set<uint64_t> seen;
  size_t count = 0;
  for (uint64_t a = 1; a < 40; ++a)
    for (uint64_t b = 0; b < 40; ++b)
      for (uint64_t c = 0; c < 40; c += 3) {
        std::vector<uint64_t> sizes{a};
        if (b != 0) sizes.push_back(b);
        if (c != 0 && b != 0) sizes.push_back(c);
        if (c != 0 && b == 0) continue;
        seen.insert(shapeOf(sizes));
        ++count;
        EXPECT_EQ(0u, shapeOf(sizes) >> 63);
      }
  EXPECT_EQ(count, seen.size());
}

// Each region once, in the order in which they come; places refer to them.
TEST(PostedList, ReceivesAreWordsForTheSender) {
  Regions regions;
  PostedList list(/*isSend=*/false, 3);
  EXPECT_OK(list.add(regions.records[5], 16, 1));
  EXPECT_OK(list.add(regions.records[2], 0x1122, 4096));
  EXPECT_OK(list.add(regions.records[5], 64 << 10, 524288));
  EXPECT_OK(list.close());
  const std::vector<uint64_t> expected = {0x105,
                                          0x205,
                                          0x102,
                                          0x202,
                                          0x0000'0000'0000'0010,
                                          0x0001'0000'0000'1122,
                                          0x0000'0000'0001'0000};
  EXPECT_EQ(expected, list.words());
  EXPECT_EQ(2u, list.regions().size());
  EXPECT_EQ(3u, list.count());
  EXPECT_EQ(1u + 4096 + 524288, list.bytes());
  EXPECT_EQ(0x144e68af6a3e921eu, list.shape());
}

TEST(PostedList, SendsAreAddresses) {
  Regions regions;
  PostedList list(/*isSend=*/true, 300);
  for (RegionRecord& record : regions.records) EXPECT_OK(list.add(record, 8, 100000));
  EXPECT_OK(list.close());  // they overlap, which harms nobody
  EXPECT_EQ(300u, list.regions().size());
  EXPECT_EQ(memory + 1024 + 8, list.pieces()[1].from);
  EXPECT_TRUE(list.words().empty());
}

TEST(PostedList, WhatCannotBeReceivedIsRefused) {
  Regions regions;
  PostedList many(/*isSend=*/false, 300);
  Status status;
  for (size_t i = 0; i < 300 && status.isOk(); ++i) {
    status = many.add(regions.records[i], 0, 8);
    EXPECT_EQ(i < PieceNames::kMostRegions, status.isOk()) << i;
  }
  EXPECT_EQ(Code::kInvalidArgument, status.code());
  PostedList distant(/*isSend=*/false, 1);
  EXPECT_EQ(Code::kInvalidArgument, distant.add(regions.records[0], uint64_t{1} << 48, 8).code());
  // The same memory by two regions, not in order.
  for (const uint64_t offset : {uint64_t{1023}, uint64_t{1024}}) {
    PostedList list(/*isSend=*/false, 3);
    EXPECT_OK(list.add(regions.records[1], 100, 50));
    EXPECT_OK(list.add(regions.records[1], 0, 100));
    EXPECT_OK(list.add(regions.records[0], offset - 24, 24));
    EXPECT_OK(list.close());
    PostedList other(/*isSend=*/false, 2);
    EXPECT_OK(other.add(regions.records[1], 0, 100));
    EXPECT_OK(other.add(regions.records[0], offset, 1));
    EXPECT_EQ(offset == 1023, other.close().isOk());
  }
}

}  // namespace
}  // namespace peerlane
