// SPDX-License-Identifier: Apache-2.0
//
// What TcpLiveness makes of the kernel's numbers. That the kernel gives them is shown between
// network namespaces (tests/network).
#include "peerlane/transport/tcp/tcp_liveness.h"

#include <gtest/gtest.h>

namespace peerlane {
namespace {

using namespace std::chrono_literals;
using Verdict = TcpLiveness::Verdict;

class TcpLivenessTest : public testing::Test {
 protected:
  static constexpr TcpFlow kIdle{.taken = 100, .sinceAnswer = 1h};
  static constexpr TcpFlow kUnread{.taken = 100, .isWaiting = true, .sinceAnswer = 1h};
  static constexpr TcpFlow kCut{
      .taken = 100, .isWaiting = true, .unanswered = 2, .sinceAnswer = 1h};

  Verdict at(std::chrono::seconds time, const TcpFlow& flow) {
    return liveness_.judge(flow, TcpLiveness::Clock::time_point(time));
  }
  TcpLiveness liveness_{10s};
};

TEST_F(TcpLivenessTest, AnIdleConnectionFlows) {
  EXPECT_EQ(at(0s, kIdle), Verdict::kFlows);
  EXPECT_EQ(at(1000s, kIdle), Verdict::kFlows);
}

// The last answer is from before: the patience begins with what waits.
TEST_F(TcpLivenessTest, AnswersOfAnIdleTimeDoNotCount) {
  EXPECT_EQ(at(0s, kIdle), Verdict::kFlows);
  EXPECT_EQ(at(1000s, kCut), Verdict::kFlows);
  EXPECT_EQ(at(1009s, kCut), Verdict::kFlows);
  EXPECT_EQ(at(1010s, kCut), Verdict::kDead);
}

TEST_F(TcpLivenessTest, AHostThatAnswersIsNotDead) {
  EXPECT_EQ(at(0s, kUnread), Verdict::kFlows);
  EXPECT_EQ(at(10s, kUnread), Verdict::kStuck);
  TcpFlow answered = kCut;
  answered.sinceAnswer = 9s;
  EXPECT_EQ(at(11s, answered), Verdict::kStuck);
  TcpFlow probed = kCut;
  probed.unanswered = 1;
  EXPECT_EQ(at(200s, probed), Verdict::kStuck) << "a probe is on its way, or was lost";
}

TEST_F(TcpLivenessTest, WhatMovesFlows) {
  TcpFlow flow = kCut;
  for (int second = 0; second < 100; second += 9) {
    ++flow.taken;
    EXPECT_EQ(at(std::chrono::seconds(second), flow), Verdict::kFlows) << second;
  }
  EXPECT_EQ(at(200s, kIdle), Verdict::kFlows);
  EXPECT_EQ(at(300s, kCut), Verdict::kFlows) << "it waits since now";
}

}  // namespace
}  // namespace peerlane
