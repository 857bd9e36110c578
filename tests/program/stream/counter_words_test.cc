// SPDX-License-Identifier: Apache-2.0
//
// Additions of many streams to one counter: each word has one writer at a time, totals only grow,
// and a word changes hands only behind the end of its last writer.
#include "peerlane/program/stream/queues/counter_words.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace peerlane::stream {
namespace {

class CounterWordsTest : public ::testing::Test {
 protected:
  // A stream whose posts end when the test says so.
  struct Stream {
    SubmissionQueue queue;
    std::atomic<uint64_t> completion{0};
    Stream() { queue.completion = &completion; }
    DevicePost post() {
      queue.last = {&completion, ++queue.posted};
      return queue.last;
    }
  };

  CounterWords::Claim add(Stream& stream, uint64_t value) {
    const auto claim = counters_.claim(line(), stream.queue, value);
    counters_.settle(line(), claim, stream.post());
    return claim;
  }
  std::byte* line() { return reinterpret_cast<std::byte*>(words_); }

  alignas(64) uint64_t words_[CounterLine::kWords] = {};
  CounterWords counters_;
};

TEST_F(CounterWordsTest, AStreamKeepsItsWordAndItsTotalGrows) {
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

TEST_F(CounterWordsTest, AWordThatIsBusyIsWaitedFor) {
  std::vector<std::unique_ptr<Stream>> streams;
  for (uint32_t i = 0; i <= CounterLine::kDeviceWords; ++i)
    streams.push_back(std::make_unique<Stream>());
  for (uint32_t i = 0; i < CounterLine::kDeviceWords; ++i)
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

TEST_F(CounterWordsTest, WhatWasNotPostedIsTakenBack) {
  Stream one;
  add(one, 2);
  const auto claim = counters_.claim(line(), one.queue, 40);
  counters_.undo(line(), claim, 40);
  EXPECT_EQ(add(one, 1).total, 3u);
}

TEST_F(CounterWordsTest, ANewLineAtAnOldAddressBeginsAtZero) {
  Stream one;
  add(one, 9);
  counters_.forget(line(), sizeof(words_));
  EXPECT_EQ(add(one, 1).total, 1u);
}

}  // namespace
}  // namespace peerlane::stream
