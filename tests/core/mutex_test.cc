// SPDX-License-Identifier: Apache-2.0
//
// The locks lock: what the analysis of clang takes for granted.
#include "peerlane/core/mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace peerlane {
namespace {

using std::chrono::steady_clock;
using namespace std::chrono_literals;

static_assert(sizeof(Mutex) == sizeof(std::mutex) && sizeof(MutexLock) == sizeof(void*) &&
              sizeof(SharedMutex) == sizeof(std::shared_mutex));

// Whether another thread gets the lock at once.
bool isFree(Mutex& mutex) {
  bool isTaken = false;
  std::thread([&] {
    if (!mutex.tryLock()) return;
    isTaken = true;
    mutex.unlock();
  }).join();
  return isTaken;
}

TEST(MutexLock, HoldsAsLongAsItLives) {
  Mutex mutex;
  {
    const MutexLock lock(mutex);
    EXPECT_FALSE(isFree(mutex));
  }
  EXPECT_TRUE(isFree(mutex));
}

TEST(ReleasableLock, LetsGoInBetween) {
  Mutex mutex;
  {
    ReleasableLock lock(mutex);
    lock.unlock();
    EXPECT_TRUE(isFree(mutex));
    lock.lock();
    EXPECT_FALSE(isFree(mutex));
  }
  EXPECT_TRUE(isFree(mutex));
  {
    ReleasableLock lock(mutex);
    lock.unlock();
  }
  EXPECT_TRUE(isFree(mutex));
}

struct Count {
  Mutex mutex;
  Condition changed;
  int value PEERLANE_GUARDED_BY(mutex) = 0;
};

TEST(Condition, WaitsWithoutTheMutexAndComesBackWithIt) {
  Count count;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&count] {
      const MutexLock lock(count.mutex);
      ++count.value;
      count.changed.notifyAll();
      while (count.value < 4) count.changed.wait(count.mutex);
    });
  const MutexLock lock(count.mutex);
  while (count.value < 3) count.changed.wait(count.mutex);
  EXPECT_FALSE(isFree(count.mutex));
  ++count.value;
  count.changed.notifyAll();
}

TEST(Condition, SaysWhenItIsTheDeadline) {
  Count count;
  const MutexLock lock(count.mutex);
  const auto deadline = steady_clock::now() + 20ms;
  while (count.changed.waitUntil(count.mutex, deadline)) {
  }
  EXPECT_GE(steady_clock::now(), deadline);
  EXPECT_FALSE(isFree(count.mutex));
}

TEST(SharedMutex, ReadersAreTogetherAndAWriterIsAlone) {
  SharedMutex mutex;
  std::atomic<int> readers{0}, wrong{0};
  std::vector<std::jthread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&] {
      const ReaderLock lock(mutex);
      ++readers;
      while (readers < 2) std::this_thread::yield();  // both are in
    });
  threads.clear();
  int value = 0;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int round = 0; round < 1000; ++round) {
        const WriterLock lock(mutex);
        const int before = value;
        value = before + 1;
        if (value != before + 1) ++wrong;
      }
    });
  threads.clear();
  EXPECT_EQ(value, 4000);
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace peerlane
