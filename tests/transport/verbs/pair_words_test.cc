// SPDX-License-Identifier: Apache-2.0
//
// Words about queue pairs: what is written is read, and what is none is refused.
#include "peerlane/transport/verbs/pair_words.h"

#include <gtest/gtest.h>

#include "tests/core/expect_ok.h"

namespace peerlane {
namespace {

using Kind = PairWords::Kind;

PairWords anew() {
  return {.kind = Kind::kAnew, .round = 7, .pairs = {{0xabcdef, 0x123456}}, .taken = 0x1234567890};
}

TEST(PairWordsFormat, WhatIsWrittenIsRead) {
  const PairWords words = MUST(parsePairWords(encodePairWords(anew())));
  EXPECT_EQ(words.kind, Kind::kAnew);
  EXPECT_EQ(words.round, 7u);
  EXPECT_EQ(words.taken, 0x1234567890u);
  ASSERT_EQ(words.pairs.size(), 1u);
  EXPECT_EQ(words.pairs[0].number, 0xabcdefu);
  EXPECT_EQ(words.pairs[0].firstPacket, 0x123456u);
}

TEST(PairWordsFormat, ACountThatIsNotKnownIsNone) {
  PairWords words = anew();
  words.taken.reset();
  EXPECT_FALSE(MUST(parsePairWords(encodePairWords(words))).taken.has_value());
}

TEST(PairWordsFormat, MoreMayBeNone) {
  const PairWords more{.kind = Kind::kMore, .round = 0, .pairs = {}, .taken = {}};
  EXPECT_TRUE(MUST(parsePairWords(encodePairWords(more))).pairs.empty());
}

TEST(PairWordsFormat, LaterVersionsMayAppend) {
  std::vector<std::byte> bytes = encodePairWords(anew());
  bytes.push_back(std::byte{1});
  EXPECT_OK(parsePairWords(bytes).status());
}

TEST(PairWordsFormat, WhatIsNoneIsRefused) {
  const std::vector<std::byte> good = encodePairWords(anew());
  for (size_t bytes = 0; bytes < good.size(); ++bytes)
    EXPECT_EQ(parsePairWords(std::span(good).first(bytes)).status().code(), Code::kCorrupt)
        << bytes;
  std::vector<std::byte> wrong = good;
  wrong[0] = std::byte{PairWords::kKinds};
  EXPECT_EQ(parsePairWords(wrong).status().code(), Code::kCorrupt) << "no such kind";
  PairWords without = anew();
  without.pairs.clear();
  EXPECT_EQ(parsePairWords(encodePairWords(without)).status().code(), Code::kCorrupt);
  PairWords large = anew();
  large.pairs[0].number = 1 << 24;
  EXPECT_EQ(parsePairWords(encodePairWords(large)).status().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace peerlane
