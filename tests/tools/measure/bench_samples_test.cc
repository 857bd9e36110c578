// SPDX-License-Identifier: Apache-2.0
#include "tools/measure/bench_samples.h"

#include <gtest/gtest.h>

#include <string>

namespace peerlane::bench {
namespace {

TEST(Samples, PercentilesAreMeasuredValues) {
  Samples samples;
  EXPECT_EQ(samples.median(), 0);
  for (int i = 100; i >= 1; --i) samples.add(i);
  EXPECT_EQ(samples.median(), 50);
  EXPECT_EQ(samples.percentile(99), 99);
  EXPECT_EQ(samples.percentile(100), 100);
  EXPECT_EQ(samples.percentile(0), 1);
  EXPECT_DOUBLE_EQ(samples.mean(), 50.5);
}

TEST(Samples, P99OfFewIsTheLargest) {
  Samples samples;
  for (const double value : {3.0, 1.0, 2.0}) samples.add(value);
  EXPECT_EQ(samples.percentile(99), 3);
}

class ContestTest : public testing::Test {
 protected:
  ContestTest() {
    contest.prepare = [this](Contender who, bool checked) {
      order += who == Contender::kOurs ? "o" : "c";
      if (checked) order += "!";
      return Status::ok();
    };
    contest.sample = [](Contender who, Samples& samples) {
      samples.add(who == Contender::kOurs ? 2 : 1);
      return Status::ok();
    };
    contest.check = [this](Contender who) -> Result<uint64_t> {
      ++checks;
      return who == Contender::kOurs ? wrongOurs : wrongCeiling;
    };
    contest.withCeiling = true;
  }
  Contest contest;
  std::string order;
  int checks = 0;
  uint64_t wrongOurs = 0;
  uint64_t wrongCeiling = 0;
};

TEST_F(ContestTest, WhoGoesFirstAlternates) {
  contest.rounds = 4;
  contest.checkAll = true;
  const auto outcome = runContest(contest);
  ASSERT_TRUE(outcome.isOk());
  EXPECT_EQ(order, "o!c!c!o!o!c!c!o!");
  EXPECT_EQ(outcome->ours.median(), 2);
  EXPECT_EQ(outcome->ceiling.median(), 1);
}

TEST_F(ContestTest, WarmUpIsCheckedOnceAndNotKept) {
  contest.warmup = 3;
  contest.rounds = 16;
  contest.withCeiling = false;
  const auto outcome = runContest(contest);
  ASSERT_TRUE(outcome.isOk());
  EXPECT_EQ(outcome->ours.size(), 16u);
  EXPECT_TRUE(outcome->ceiling.empty());
  EXPECT_EQ(checks, 1 + 8);
}

TEST_F(ContestTest, WrongBytesAddUp) {
  contest.rounds = 2;
  contest.checkAll = true;
  wrongOurs = 5;
  const auto outcome = runContest(contest);
  ASSERT_TRUE(outcome.isOk());
  EXPECT_EQ(outcome->wrong, 10u);
}

TEST_F(ContestTest, ACeilingThatMovesNothingIsNone) {
  contest.rounds = 2;
  wrongCeiling = 1;
  EXPECT_EQ(runContest(contest).status().code(), Code::kInternal);
}

}  // namespace
}  // namespace peerlane::bench
