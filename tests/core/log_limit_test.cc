// SPDX-License-Identifier: Apache-2.0
#include "peerlane/core/log_limit.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "peerlane/core/shared_log_limit.h"

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

TEST(SharedLogLimit, CountsForAllThreads) {
  SharedLogLimit limit;
  const auto begin = LogLimit::Clock::now();
  std::atomic<int64_t> written{0};
  std::vector<std::thread> threads;
  for (int each = 0; each < 4; ++each)
    threads.emplace_back([&] {
      for (int i = 0; i < 250; ++i) written += limit.take(begin) ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(written.load(), LogLimit::kAtOnce);
  EXPECT_EQ(
      limit.take(begin + LogLimit::kPause),
      " (and " + std::to_string(1000 - LogLimit::kAtOnce) + " lines like this were left out)");
}

}  // namespace
}  // namespace peerlane
