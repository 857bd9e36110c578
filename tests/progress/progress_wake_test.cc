// SPDX-License-Identifier: Apache-2.0
//
// The wake rule with everything in place: a producer that rings only when nobody polls, a sleeping
// engine, waiting threads, tasks that nobody waits for.
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <time.h>

#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "peerlane/progress/progress.h"
#include "tests/core/rounds.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;
using Clock = Progress::Clock;

bool isSoak() {
  return std::getenv("PEERLANE_SOAK") != nullptr;
}

Rounds rounds(uint64_t usual) {
#if PEERLANE_THREAD_SANITIZER
  usual /= 5;
#endif
  return isSoak() ? Rounds(usual * 20, 200s) : Rounds(usual);
}

void storeAndRing(std::atomic<uint64_t>& word, uint64_t value, const Waker& waker) {
  word.store(value, std::memory_order_seq_cst);
  waker.ring();
}

// Spins for a while that differs every time, so that the store meets every phase of the sleeper.
void dawdle(std::minstd_rand& random, uint32_t most) {
  for (uint32_t i = random() % most; i > 0; --i)
    std::atomic_signal_fence(std::memory_order_seq_cst);
}

// One round: the producer stores, the waiter must wake within the (generous) bound.
void pingPong(Progress::Duration spin, Rounds rounds, uint32_t dawdling) {
  auto progress = Progress::create(spin).value();
  const Waker waker = progress->bell().localWaker();
  std::atomic<uint64_t> word{0};
  std::atomic<uint64_t> seen{0};
  std::atomic<bool> stop{false};
  std::thread producer([&] {
    std::minstd_rand random(1);
    for (uint64_t i = 1; !stop.load(); ++i) {
      dawdle(random, dawdling);
      storeAndRing(word, i, waker);
      while (seen.load(std::memory_order_acquire) < i && !stop.load()) std::this_thread::yield();
    }
  });
  Status status;
  while (const uint64_t i = status.isOk() ? rounds.next() : 0) {
    status = progress->wait([&] { return word.load(std::memory_order_acquire) >= i; },
                            Clock::now() + 20s);
    seen.store(i, std::memory_order_release);
  }
  stop.store(true);
  producer.join();
  EXPECT_TRUE(status.isOk()) << "a wake-up was lost: " << status.toString();
}

TEST(ProgressWake, NoneIsLostWhileTheWaiterSpins) {
  pingPong(50us, rounds(100'000), 2000);
}

// Without any spinning every wait goes to sleep.
TEST(ProgressWake, NoneIsLostWhenTheWaiterSleepsAtOnce) {
  pingPong(0ns, rounds(20'000), 20'000);
}

// Stores that come long after the burst has ended meet an engine that sleeps for good.
TEST(ProgressWake, NoneIsLostWhenEverybodySleeps) {
  pingPong(1us, rounds(400), 3'000'000);
}

// Nobody waits: the engine alone must see the word, by a task, whatever other threads do.
class WatchTask final : public Task {
 public:
  explicit WatchTask(const std::atomic<uint64_t>& word) : word_(word) {}
  Turn turn() override {
    const uint64_t now = word_.load(std::memory_order_acquire);
    if (now == seen.load(std::memory_order_relaxed)) return Turn::kIdle;
    seen.store(now, std::memory_order_release);
    return Turn::kMoved;
  }
  std::atomic<uint64_t> seen{0};

 private:
  const std::atomic<uint64_t>& word_;
};

// Keeps whoever turns busy for a while, so that a word changes behind his back.
class SlowTask final : public Task {
 public:
  Turn turn() override {
    dawdle(random_, 400'000);
    return Turn::kIdle;
  }

 private:
  std::minstd_rand random_{3};
};

TEST(ProgressWake, ATaskSeesEveryStoreThoughOtherThreadsTurnAndLeave) {
  auto progress = Progress::create(5us).value();
  const Waker waker = progress->bell().localWaker();
  std::atomic<uint64_t> word{0};
  auto watch = std::make_shared<WatchTask>(word);
  progress->add(watch);
  progress->add(std::make_shared<SlowTask>());
  std::atomic<bool> stop{false};
  std::thread other([&] {
    std::minstd_rand random(2);
    while (!stop.load()) {
      // Short waits that end by themselves: this thread turns, then goes away.
      (void)progress->wait([] { return false; }, Clock::now() + 20us);
      dawdle(random, 600'000);
    }
  });
  std::minstd_rand random(1);
  Rounds each = rounds(1000);
  bool lost = false;
  while (const uint64_t i = lost ? 0 : each.next()) {
    dawdle(random, 600'000);
    storeAndRing(word, i, waker);
    const auto limit = Clock::now() + 20s;
    while (watch->seen.load(std::memory_order_acquire) < i && !lost) {
      std::this_thread::yield();
      lost = Clock::now() > limit;
    }
  }
  stop.store(true);
  other.join();
  EXPECT_FALSE(lost) << "the engine sleeps on a store that came before it slept";
}

TEST(ProgressWake, ManyWaitersEachGetTheirs) {
  auto progress = Progress::create(10us).value();
  const Waker waker = progress->bell().localWaker();
  constexpr int kWaiters = 4;
  struct alignas(64) Word {
    std::atomic<uint64_t> value{0};
  };
  std::vector<Word> words(kWaiters);
  Rounds each = rounds(3000);
  std::atomic<uint64_t> last{UINT64_MAX};
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int w = 0; w < kWaiters; ++w)
    threads.emplace_back([&, w] {
      auto& word = words[static_cast<size_t>(w)].value;
      for (uint64_t i = 1; i <= last.load(); ++i)
        if (!progress
                 ->wait([&] { return word.load(std::memory_order_acquire) >= i; },
                        Clock::now() + 30s)
                 .isOk())
          failed.fetch_add(1);
    });
  std::minstd_rand random(4);
  while (const uint64_t i = each.next()) {
    for (Word& word : words) storeAndRing(word.value, i, waker);
    dawdle(random, 5000);
  }
  // A waiter may have begun to wait for one more.
  last.store(each.done());
  for (Word& word : words) storeAndRing(word.value, each.done() + 1, waker);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed.load(), 0);
}

// A sleeping engine with a sleeping waiter uses no processor.
TEST(ProgressWake, SleepingUsesNoCpu) {
  auto progress = Progress::create(50us).value();
  clockid_t loopClock{};
  ASSERT_TRUE(progress->call([&] { pthread_getcpuclockid(pthread_self(), &loopClock); }).isOk());
  std::atomic<bool> done{false};
  std::atomic<int64_t> waiterNanos{0};
  std::thread waiter([&] {
    (void)progress->wait([&] { return done.load(); }, Clock::now() + 60s);
    timespec used{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    waiterNanos.store(used.tv_sec * 1'000'000'000 + used.tv_nsec);
  });
  const auto usedByLoop = [&] {
    timespec used{};
    clock_gettime(loopClock, &used);
    return std::chrono::nanoseconds(used.tv_sec * 1'000'000'000 + used.tv_nsec);
  };
  // Until everybody had time to fall asleep, whatever else this machine does.
  auto before = usedByLoop();
  const auto limit = Clock::now() + 30s;
  for (int quiet = 0; quiet < 3 && Clock::now() < limit;) {
    (void)poll(nullptr, 0, 100);
    const auto now = usedByLoop();
    quiet = now == before ? quiet + 1 : 0;
    before = now;
  }
  (void)poll(nullptr, 0, 300);            // the time that is measured, not a synchronisation
  EXPECT_LT(usedByLoop() - before, 2ms);  // clock: the processor time of one thread
  done.store(true);
  progress->notifyWaiters();
  waiter.join();
  // clock: the processor time of one thread
  EXPECT_LT(std::chrono::nanoseconds(waiterNanos.load()), 100ms);
}

}  // namespace
}  // namespace peerlane
