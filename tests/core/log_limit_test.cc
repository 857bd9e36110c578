// SPDX-License-Identifier: Apache-2.0
#include "peerlane/core/log_limit.h"

#include <gtest/gtest.h>

namespace peerlane {
namespace {

TEST(LogLimit, SomeAtOnceThenOneASecondAndTheRestIsCounted) {
  LogLimit limit;
  const auto begin = LogLimit::Clock::now();
  int64_t written = 0;
  for (int i = 0; i < 1000; ++i) written += limit.allows(begin) ? 1 : 0;
  EXPECT_EQ(written, LogLimit::kAtOnce);
  EXPECT_TRUE(limit.allows(begin + LogLimit::kPause));
  EXPECT_EQ(limit.leftOut(), " (and " + std::to_string(1000 - LogLimit::kAtOnce) +
                                 " lines like this were left out)");
  EXPECT_FALSE(limit.allows(begin + LogLimit::kPause));
  EXPECT_TRUE(limit.allows(begin + 2 * LogLimit::kPause));
  EXPECT_EQ(limit.leftOut(), " (and 1 lines like this were left out)");
  EXPECT_EQ(limit.leftOut(), "");
}

TEST(LogLimit, AQuietTimeMakesRoomAndNoMoreThanThat) {
  LogLimit limit;
  const auto begin = LogLimit::Clock::now();
  while (limit.allows(begin)) {
  }
  int64_t written = 0;
  for (int i = 0; i < 1000; ++i) written += limit.allows(begin + std::chrono::hours(1)) ? 1 : 0;
  EXPECT_EQ(written, LogLimit::kAtOnce);
}

}  // namespace
}  // namespace peerlane
