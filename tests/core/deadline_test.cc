// SPDX-License-Identifier: Apache-2.0
#include "peerlane/core/deadline.h"

#include <gtest/gtest.h>

namespace peerlane {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
constexpr std::chrono::nanoseconds kNever = std::chrono::nanoseconds::max();

TEST(Deadline, IsNeverBeforeTheCallerWantsIt) {
  EXPECT_EQ(deadlineIn(kNever), Clock::time_point::max());
  EXPECT_EQ(timeLeft(Clock::time_point::max()), kNever);
  EXPECT_GT(timeLeft(deadlineIn(1h)), 0ns);
}

// Also where it lies further back than a duration can say.
TEST(Deadline, ThatHasPassedLeavesNoTime) {
  EXPECT_EQ(timeLeft(Clock::now()), 0ns);
  EXPECT_EQ(timeLeft(deadlineIn(-1ns)), 0ns);
  EXPECT_EQ(timeLeft(deadlineIn(std::chrono::nanoseconds::min())), 0ns);
  EXPECT_EQ(timeLeft(Clock::time_point::min()), 0ns);
}

}  // namespace
}  // namespace peerlane
