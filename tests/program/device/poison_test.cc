// SPDX-License-Identifier: Apache-2.0
//
// What releases a device's waits is there before it counts, and counts once.
#include "peerlane/program/device/poison.h"

#include <gtest/gtest.h>

#include <atomic>

namespace peerlane {
namespace {

TEST(Poison, AWordCountsOnce) {
  Metrics metrics;
  std::atomic<uint64_t> word{7};
  poisonWord(word, &metrics.poisonings());
  EXPECT_TRUE(isPoison(word.load()));
  poisonWord(word, &metrics.poisonings());
  EXPECT_EQ(metrics.poisonings().value(), 1u);
}

TEST(Poison, AnAbortWordCountsOnceUntilItIsLentAgain) {
  Metrics metrics;
  std::atomic<uint64_t> abort{0};
  abortWaits(abort, &metrics.poisonings());
  EXPECT_EQ(abort.load(), 1u);
  abortWaits(abort, &metrics.poisonings());
  EXPECT_EQ(metrics.poisonings().value(), 1u);
  abort = 0;
  abortWaits(abort, &metrics.poisonings());
  EXPECT_EQ(metrics.poisonings().value(), 2u);
}

TEST(Poison, WhereNothingWaitsNothingCounts) {
  std::atomic<uint64_t> word{0}, abort{0};
  poisonWord(word, nullptr);
  abortWaits(abort, nullptr);
  EXPECT_TRUE(isPoison(word.load()));
  EXPECT_EQ(abort.load(), 1u);
}

}  // namespace
}  // namespace peerlane
