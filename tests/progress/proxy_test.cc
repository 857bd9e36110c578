// SPDX-License-Identifier: Apache-2.0
//
// The thread that serves ports: when it looks, when it sleeps, and how it ends.
#include "peerlane/progress/proxy.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/core/expect_ok.h"
#include "tests/core/soon.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Turn = Proxy::Turn;

// A proxy whose turns are counted and say what the test wants.
struct Counted {
  explicit Counted(const Proxy::Pace& pace) {
    proxy = MUST(Proxy::create(
        [this] {
          cpu.store(cpuOfThread(), std::memory_order_relaxed);
          const Turn turn = say.load();
          turns.fetch_add(1);
          return turn;
        },
        pace));
  }
  static int64_t cpuOfThread() {
    timespec used{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return used.tv_sec * 1'000'000'000 + used.tv_nsec;
  }
  bool takesTurns(uint64_t count) {
    const uint64_t until = turns.load() + count;
    return soon([&] { return turns.load() >= until; });
  }

  std::atomic<Turn> say{Turn::kIdle};
  std::atomic<uint64_t> turns{0};
  std::atomic<int64_t> cpu{0};
  std::unique_ptr<Proxy> proxy;  // ends before what it turns
};

TEST(Proxy, RefusesNapsThatAreNone) {
  for (const Proxy::Duration nap :
       {Proxy::Duration(0), Proxy::Duration(-1ms), Proxy::Duration(101ms), Proxy::Duration::max(),
        Proxy::Duration::min()}) {
    const auto refused = Proxy::create([] { return Turn::kIdle; }, {.longestNap = nap});
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument) << nap.count();
    EXPECT_NE(refused.status().message().find("longest nap is " + std::to_string(nap.count())),
              std::string_view::npos)
        << refused.status().toString();
  }
  EXPECT_OK(Proxy::create([] { return Turn::kIdle; }, {.longestNap = 100ms}).status());
  EXPECT_OK(Proxy::create([] { return Turn::kIdle; }, {.longestNap = 1ns}).status());
}

TEST(Proxy, TakesNoTurnBeforeItStarts) {
  Counted counted({});
  EXPECT_FALSE(counted.proxy->isRunning());
  counted.proxy->wake();
  EXPECT_EQ(counted.turns.load(), 0u);
  ASSERT_OK(counted.proxy->start());
  EXPECT_TRUE(counted.proxy->isRunning());
  EXPECT_TRUE(counted.takesTurns(1));
}

TEST(Proxy, KnowsItsOwnThread) {
  std::atomic<int> inside{-1};
  std::unique_ptr<Proxy> proxy;
  proxy = MUST(Proxy::create(
      [&] {
        inside.store(proxy->onThread() ? 1 : 0);
        return Turn::kIdle;
      },
      {}));
  ASSERT_OK(proxy->start());
  EXPECT_TRUE(soon([&] { return inside.load() >= 0; }));
  EXPECT_EQ(inside.load(), 1);
  EXPECT_FALSE(proxy->onThread());
  proxy->stop();
}

// While there is work, and as long after it as it was told, it looks without a pause.
TEST(Proxy, DoesNotSleepWhileThereIsWorkAndAWhileAfter) {
  Counted counted({.spin = 10s, .longestNap = 100ms});
  counted.say.store(Turn::kMoved);
  ASSERT_OK(counted.proxy->start());
  ASSERT_TRUE(counted.takesTurns(1000));
  counted.say.store(Turn::kIdle);
  ASSERT_TRUE(counted.takesTurns(1000));
  EXPECT_EQ(counted.proxy->naps(), 0u);
}

TEST(Proxy, SleepsOnceTheWorkIsOver) {
  Counted counted({.spin = 0ns, .longestNap = 1ms});
  counted.say.store(Turn::kMoved);
  ASSERT_OK(counted.proxy->start());
  ASSERT_TRUE(counted.takesTurns(1000));
  EXPECT_EQ(counted.proxy->naps(), 0u);
  counted.say.store(Turn::kIdle);
  EXPECT_TRUE(soon([&] { return counted.proxy->naps() >= 3; }));
}

// So work that comes after a short rest is seen soon, and a proxy that has long had none looks a
// thousand times a second.
TEST(Proxy, NapsGrowWithTheSquareOfTheRest) {
  const Proxy::Pace pace;
  EXPECT_EQ(Proxy::napAfter(0ns, pace), 10us);
  EXPECT_EQ(Proxy::napAfter(20ms, pace), 10us);
  EXPECT_EQ(Proxy::napAfter(40ms, pace), 40us);
  EXPECT_EQ(Proxy::napAfter(100ms, pace), 250us);
  EXPECT_EQ(Proxy::napAfter(200ms, pace), 1ms);
  EXPECT_EQ(Proxy::napAfter(24h, pace), 1ms);
  EXPECT_EQ(Proxy::napAfter(24h, {.longestNap = 20us}), 20us);
  EXPECT_EQ(Proxy::napAfter(0ns, {.longestNap = 5us}), 5us);
}

// With such a scale the fourth nap is at the limit. Where something is under way naps stay short.
TEST(Proxy, NapsGrowToTheLimitUnlessSomethingIsUnderWay) {
  Counted idle({.spin = 0ns, .longestNap = 20ms, .napScale = 1us});
  ASSERT_OK(idle.proxy->start());
  const auto begin = Clock::now();
  ASSERT_TRUE(idle.takesTurns(20));
  // 19 naps: at most 10 us, 100 us and 12 ms; then 20 ms each.
  EXPECT_GT(Clock::now() - begin, 150ms) << "the naps did not grow";
  idle.proxy->stop();

  // 300 naps of 100 ms would take more than takesTurns() waits for.
  Counted pending({.spin = 0ns, .longestNap = 100ms, .napScale = 1us});
  pending.say.store(Turn::kPending);
  ASSERT_OK(pending.proxy->start());
  ASSERT_TRUE(pending.takesTurns(300));
  EXPECT_GE(pending.proxy->naps(), 270u);
}

// A nap of 100 ms is cut short, not waited for.
TEST(Proxy, WakeEndsANap) {
  Counted counted({.spin = 0ns, .longestNap = 100ms, .armed = 0ns, .napScale = 1us});
  ASSERT_OK(counted.proxy->start());
  // The fifth nap, if not an earlier one, takes 100 ms.
  ASSERT_TRUE(soon([&] { return counted.proxy->naps() >= 5; }));
  // Once is enough, because a busy machine may hold it up; without the wake each nap lasts 100 ms.
  EXPECT_TRUE(soon([&] {
    const uint64_t naps = counted.proxy->naps();
    const uint64_t turns = counted.turns.load();
    const auto begin = Clock::now();
    counted.proxy->wake();
    EXPECT_TRUE(soon([&] { return counted.turns.load() > turns; }));
    const auto delay = Clock::now() - begin;
    // It is asleep again, deeply: after a wake naps grow anew.
    EXPECT_TRUE(soon([&] { return counted.proxy->naps() >= naps + 5; }));
    return delay < 50ms;
  }));
}

TEST(Proxy, LooksWithoutAPauseForAWhileAfterWake) {
  Counted counted({.spin = 0ns, .longestNap = 100ms, .armed = 10s});
  ASSERT_OK(counted.proxy->start());
  ASSERT_TRUE(soon([&] { return counted.proxy->naps() >= 3; }));
  counted.proxy->wake();
  uint64_t turns = counted.turns.load();
  ASSERT_TRUE(soon([&] { return counted.turns.load() >= turns + 100; }));
  const uint64_t naps = counted.proxy->naps();
  ASSERT_TRUE(counted.takesTurns(2000));
  EXPECT_EQ(counted.proxy->naps(), naps);
}

// With wake() it would not nap again for 10 s.
TEST(Proxy, NapsAgainAfterAProd) {
  Counted counted({.spin = 0ns, .longestNap = 100ms, .armed = 10s});
  ASSERT_OK(counted.proxy->start());
  ASSERT_TRUE(soon([&] { return counted.proxy->naps() >= 3; }));
  for (int i = 0; i < 20; ++i) counted.proxy->prod();
  const uint64_t naps = counted.proxy->naps();
  // clock: it tells naps of 100 ms from 10 s without one; soon() counts no stretch without the CPU
  EXPECT_TRUE(soon([&] { return counted.proxy->naps() >= naps + 3; }, 9s));
}

TEST(Proxy, StartsAgainAfterStop) {
  Counted counted({});
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK(counted.proxy->start());
    ASSERT_OK(counted.proxy->start());  // it is idempotent
    ASSERT_TRUE(counted.takesTurns(2));
    counted.proxy->stop();
    EXPECT_FALSE(counted.proxy->isRunning());
    const uint64_t turns = counted.turns.load();
    counted.proxy->wake();
    std::this_thread::yield();
    EXPECT_EQ(counted.turns.load(), turns);
    counted.proxy->stop();
  }
}

// A stop does not wait for the end of a nap.
TEST(Proxy, StopEndsANap) {
  Counted counted({.spin = 0ns, .longestNap = 100ms, .napScale = 1us});
  // Once is enough, as above.
  EXPECT_TRUE(soon([&] {
    const uint64_t naps = counted.proxy->naps();
    EXPECT_OK(counted.proxy->start());
    EXPECT_TRUE(soon([&] { return counted.proxy->naps() >= naps + 5; }));
    const auto begin = Clock::now();
    counted.proxy->stop();
    return Clock::now() - begin < 40ms;
  }));
}

TEST(Proxy, SeveralThreadsStopAndStart) {
  Counted counted({});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&counted, t] {
      for (int i = 0; i < 50; ++i) {
        if ((t + i) % 2 == 0)
          counted.proxy->stop();
        else
          EXPECT_OK(counted.proxy->start());
        counted.proxy->wake();
      }
    });
  for (std::thread& thread : threads) thread.join();
  counted.proxy->stop();
  EXPECT_FALSE(counted.proxy->isRunning());
  ASSERT_OK(counted.proxy->start());
  EXPECT_TRUE(counted.takesTurns(2));
}

TEST(Proxy, IsStoppedByItsEnd) {
  std::atomic<uint64_t> turns{0};
  auto proxy = MUST(Proxy::create(
      [&] {
        turns.fetch_add(1);
        return Turn::kMoved;
      },
      {}));
  ASSERT_OK(proxy->start());
  proxy.reset();
  const uint64_t last = turns.load();
  std::this_thread::yield();
  EXPECT_EQ(turns.load(), last);
}

// Far below the quarter of a core that this allows, which is what a machine that runs other tests
// beside may show.
TEST(Proxy, CostsLittleWhenIdle) {
  Counted counted({});
  ASSERT_OK(counted.proxy->start());
  ASSERT_TRUE(soon([&] { return counted.proxy->naps() >= 10; }));
  const int64_t cpu = counted.cpu.load();
  const auto begin = Clock::now();
  ASSERT_TRUE(soon([&] { return Clock::now() - begin > 300ms; }));
  const uint64_t naps = counted.proxy->naps();
  EXPECT_LT(counted.cpu.load() - cpu, 75'000'000) << "ns of CPU in 300 ms, " << naps << " naps";
}

}  // namespace
}  // namespace peerlane
