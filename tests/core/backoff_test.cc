// SPDX-License-Identifier: Apache-2.0
//
// SpinWait: the bound between spinning and yielding, and that two threads on any number of cores
// get through.
#include "peerlane/core/backoff.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace peerlane {
namespace {

TEST(SpinWait, SpinsSoManyTurnsThenYields) {
  SpinWait wait(3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(wait.yields()) << i;
    wait.pause();
  }
  EXPECT_TRUE(wait.yields());
  wait.pause();
  EXPECT_TRUE(wait.yields());
  wait.reset();
  EXPECT_FALSE(wait.yields());
  EXPECT_TRUE(SpinWait(0).yields());
}

// Release stores and acquire loads of one word that both sides write in turn.
TEST(SpinWait, PingPongEnds) {
  constexpr int kRounds = 2000;
  std::atomic<int> turn{0};
  auto play = [&turn](int parity) {
    for (int i = parity; i < 2 * kRounds; i += 2) {
      SpinWait wait;
      while (turn.load(std::memory_order_acquire) != i) wait.pause();
      turn.store(i + 1, std::memory_order_release);
    }
  };
  std::jthread other(play, 1);
  play(0);
  other.join();
  EXPECT_EQ(turn.load(), 2 * kRounds);
}

}  // namespace
}  // namespace peerlane
