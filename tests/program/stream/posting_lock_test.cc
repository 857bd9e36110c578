// SPDX-License-Identifier: Apache-2.0
//
// Who leaves work to a lock never waits for its holder, and the work is done under the lock, once.
#include "peerlane/program/stream/pools/posting_lock.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace peerlane::stream {
namespace {

TEST(PostingLockTest, WorkIsDoneAtOnceWhereNobodyHoldsIt) {
  PostingLock lock;
  int done = 0;
  lock.soon([&] { ++done; });
  EXPECT_EQ(done, 1);
}

TEST(PostingLockTest, WorkIsLeftToTheHolder) {
  PostingLock lock;
  int done = 0;
  lock.lock();
  std::thread([&] {
    lock.soon([&] { ++done; });
    lock.soon([&] { done *= 10; });
  }).join();  // it does not wait
  EXPECT_EQ(done, 0);
  lock.unlock();
  EXPECT_EQ(done, 10);
}

TEST(PostingLockTest, OneAtATime) {
  constexpr int kThreads = 4, kRounds = 10000;
  PostingLock lock;
  int done = 0;  // under the lock, by whoever
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < kRounds; ++round) {
        if (i % 2 == 0) {
          lock.soon([&] { ++done; });
          continue;
        }
        const std::lock_guard held(lock);
        ++done;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(done, kThreads * kRounds);
}

}  // namespace
}  // namespace peerlane::stream
