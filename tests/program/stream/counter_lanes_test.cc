// SPDX-License-Identifier: Apache-2.0
//
// Additions of many streams to one counter: each word has one writer at a time, totals only grow,
// and a word changes hands only behind the end of its last writer.
#include "peerlane/program/stream/lanes/counter_lanes.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace peerlane::stream {
namespace {

class CounterLanesTest : public ::testing::Test {
 protected:
  // A stream whose posts end when the test says so.
  struct Stream {
    StreamLane lane;
    std::atomic<uint64_t> completion{0};
    Stream() { lane.completion = &completion; }
    DevicePost post() {
      lane.last = {&completion, ++lane.posted};
      return lane.last;
    }
  };

  CounterLanes::Claim add(Stream& stream, uint64_t value) {
    const auto claim = lanes_.claim(line(), stream.lane, value);
    lanes_.settle(line(), claim, stream.post());
    return claim;
  }
  std::byte* line() { return reinterpret_cast<std::byte*>(words_); }

  alignas(64) uint64_t words_[CounterLine::kWords] = {};
  CounterLanes lanes_;
};

TEST_F(CounterLanesTest, AStreamKeepsItsWordAndItsTotalGrows) {
  Stream one, two;
  const auto first = add(one, 3);
  const auto other = add(two, 10);
  const auto second = add(one, 4);
  EXPECT_EQ(first.word, second.word);
  EXPECT_NE(first.word, other.word);
  EXPECT_NE(first.word, &words_[0]);  // the CPU's
  EXPECT_EQ(first.total, 3u);
  EXPECT_EQ(second.total, 7u);
  EXPECT_EQ(other.total, 10u);
  EXPECT_EQ(second.after.word(), nullptr);
}

TEST_F(CounterLanesTest, AWordThatIsBusyIsWaitedFor) {
  std::vector<std::unique_ptr<Stream>> streams;
  for (uint32_t i = 0; i <= CounterLine::kDeviceLanes; ++i)
    streams.push_back(std::make_unique<Stream>());
  for (uint32_t i = 0; i < CounterLine::kDeviceLanes; ++i)
    EXPECT_EQ(add(*streams[i], 1).after.word(), nullptr);
  // All seven are under way: the eighth lines up behind the least recent.
  const auto late = add(*streams.back(), 5);
  EXPECT_EQ(late.after.word(), &streams[0]->completion);
  EXPECT_EQ(late.after.number(), 1u);
  EXPECT_EQ(late.total, 6u);  // on top of what the word holds
  // One has ended: its word is free, and nobody waits.
  streams[3]->completion = 1;
  Stream another;
  const auto free = add(another, 2);
  EXPECT_EQ(free.after.word(), nullptr);
  EXPECT_EQ(free.total, 3u);
}

TEST_F(CounterLanesTest, WhatWasNotPostedIsTakenBack) {
  Stream one;
  add(one, 2);
  const auto claim = lanes_.claim(line(), one.lane, 40);
  lanes_.undo(line(), claim, 40);
  EXPECT_EQ(add(one, 1).total, 3u);
}

TEST_F(CounterLanesTest, ANewLineAtAnOldAddressBeginsAtZero) {
  Stream one;
  add(one, 9);
  lanes_.forget(line(), sizeof(words_));
  EXPECT_EQ(add(one, 1).total, 1u);
}

}  // namespace
}  // namespace peerlane::stream
