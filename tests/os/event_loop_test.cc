// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/event_loop.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "peerlane/os/fd.h"
#include "peerlane/os/socket.h"
#include "tests/os/refused_calls.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kLong = 20s;

std::unique_ptr<EventLoop> makeLoop() {
  return EventLoop::create().value();
}

// Advice hangs on the error: more descriptors help nobody whom a filter refuses the call.
TEST(EventLoop, WhatTheSystemRefusesIsNoLackOfDescriptors) {
  const pid_t child = fork();
  if (child == 0) {
    refuseCalls(SYS_epoll_create1, EPERM);
    refuseCalls(SYS_epoll_create, EPERM);
    const Status status = EventLoop::create().status();
    const bool isRight = status.code() == Code::kSystem && status.systemError() == EPERM &&
                         status.message().find("ulimit") == std::string_view::npos;
    _exit(isRight ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(EventLoop, NothingToDoReturnsAtOnce) {
  auto loop = makeLoop();
  EXPECT_EQ(loop->poll(), 0u);
  EXPECT_EQ(loop->spin(), 0u);
  EXPECT_EQ(loop->waitOnce(0ns), 0u);
}

TEST(EventLoop, WatchIsLevelTriggered) {
  auto loop = makeLoop();
  Fd event = makeEventFd().value();
  int calls = 0;
  Watch watch = loop->watch(event.get(), true, false, [&] { ++calls; }).value();
  EXPECT_TRUE(watch);
  EXPECT_EQ(loop->poll(), 0u);
  signalEventFd(event.get());
  for (int turn = 1; turn <= 5; ++turn) {
    EXPECT_EQ(loop->poll(), 1u);
    EXPECT_EQ(calls, turn) << "still readable, so once per turn";
  }
  EXPECT_EQ(loop->waitOnce(kLong), 1u);
  drainEventFd(event.get());
  EXPECT_EQ(loop->poll(), 0u);
  signalEventFd(event.get());
  EXPECT_EQ(loop->poll(), 1u);
  EXPECT_EQ(calls, 7);
}

TEST(EventLoop, WritableAndInterest) {
  auto loop = makeLoop();
  auto [left, right] = socketPair().value();
  int calls = 0;
  Watch watch = loop->watch(left.get(), false, true, [&] { ++calls; }).value();
  EXPECT_EQ(loop->poll(), 1u);
  EXPECT_EQ(loop->poll(), 1u);
  watch.setInterest(false, false);
  EXPECT_EQ(loop->poll(), 0u);
  EXPECT_EQ(loop->poll(), 0u);
  watch.setInterest(true, false);
  EXPECT_EQ(loop->poll(), 0u);
  ASSERT_TRUE(sendSome(right.get(), std::as_bytes(std::span("x", 1))).isOk());
  EXPECT_EQ(loop->poll(), 1u);
  watch.setInterest(true, true);
  EXPECT_EQ(loop->poll(), 2u);
  EXPECT_EQ(calls, 5);
}

TEST(EventLoop, FullSocketIsNotWritableUntilItIsRead) {
  auto loop = makeLoop();
  auto [left, right] = socketPair().value();
  std::vector<std::byte> block(1 << 16);
  while (sendSome(left.get(), block).isOk()) {
  }
  int calls = 0;
  Watch watch = loop->watch(left.get(), false, true, [&] { ++calls; }).value();
  EXPECT_EQ(loop->poll(), 0u);
  while (recvSome(right.get(), block).isOk()) {
  }
  EXPECT_EQ(loop->waitOnce(kLong), 1u);
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, HangUpIsReported) {
  auto loop = makeLoop();
  auto [left, right] = socketPair().value();
  int calls = 0;
  Watch watch = loop->watch(left.get(), true, false, [&] { ++calls; }).value();
  EXPECT_EQ(loop->poll(), 0u);
  right.reset();
  EXPECT_EQ(loop->waitOnce(kLong), 1u);
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, EndedWatchIsNotCalled) {
  auto loop = makeLoop();
  Fd event = makeEventFd().value();
  signalEventFd(event.get());
  int calls = 0;
  {
    Watch watch = loop->watch(event.get(), true, false, [&] { ++calls; }).value();
    EXPECT_EQ(loop->poll(), 1u);
  }
  EXPECT_EQ(loop->poll(), 0u);
  // The descriptor is free for a new watch, which works.
  Watch again = loop->watch(event.get(), true, false, [&] { calls += 10; }).value();
  EXPECT_EQ(loop->poll(), 1u);
  EXPECT_EQ(calls, 11);
}

TEST(EventLoop, WatchMayEndItselfAndOthersThatAreDue) {
  auto loop = makeLoop();
  Fd first = makeEventFd().value();
  Fd second = makeEventFd().value();
  signalEventFd(first.get());
  signalEventFd(second.get());
  int calls = 0;
  Watch a;
  Watch b;
  auto endBoth = [&, keep = std::make_shared<int>(5)] {
    calls += *keep;
    a = Watch();
    b = Watch();
    calls += *keep;  // what the function captured is still there
  };
  a = loop->watch(first.get(), true, false, endBoth).value();
  b = loop->watch(second.get(), true, false, endBoth).value();
  EXPECT_EQ(loop->poll(), 1u);
  EXPECT_EQ(calls, 10);
  EXPECT_EQ(loop->poll(), 0u);
}

TEST(EventLoop, MovedWatchGoesOn) {
  auto loop = makeLoop();
  Fd event = makeEventFd().value();
  signalEventFd(event.get());
  Watch first = loop->watch(event.get(), true, false, [] {}).value();
  Watch second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): that is the claim
  EXPECT_EQ(loop->poll(), 1u);
}

TEST(EventLoop, BadDescriptorsAreRefused) {
  auto loop = makeLoop();
  Fd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  Fd event = makeEventFd().value();
  Watch watch = loop->watch(event.get(), true, false, [] {}).value();
  EXPECT_EQ(loop->watch(-1, true, false, [] {}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(loop->watch(file.get(), true, false, [] {}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(loop->watch(event.get(), true, false, [] {}).status().code(), Code::kInvalidArgument);
  EXPECT_GE(::fcntl(event.get(), F_GETFD), 0) << "a refused descriptor stays open";
}

TEST(EventLoop, HandlesMayOutliveTheLoop) {
  Fd event = makeEventFd().value();
  Watch watch;
  Timer timer;
  auto kept = std::make_shared<int>(1);
  {
    auto loop = makeLoop();
    watch = loop->watch(event.get(), true, false, [kept] {}).value();
    timer = loop->after(1h, [kept] {});
    loop->post([kept] {});
    EXPECT_EQ(kept.use_count(), 4);
  }
  EXPECT_EQ(kept.use_count(), 1) << "the loop drops what it did not run";
  EXPECT_FALSE(watch);
  EXPECT_FALSE(timer.pending());
  watch.setInterest(true, true);
  timer.cancel();
}

TEST(EventLoop, TimersRunOnceAndInOrder) {
  auto loop = makeLoop();
  std::vector<int> order;
  const auto start = Clock::now();
  Timer late = loop->after(4ms, [&] { order.push_back(2); });
  Timer early = loop->after(1ms, [&] { order.push_back(1); });
  Timer never = loop->after(2ms, [&] { order.push_back(9); });
  EXPECT_TRUE(never.pending());
  never.cancel();
  EXPECT_FALSE(never.pending());
  {
    Timer dropped = loop->after(2ms, [&] { order.push_back(8); });
  }
  while (order.size() < 2) ASSERT_GT(loop->waitOnce(kLong), 0u);
  EXPECT_GE(Clock::now() - start, 4ms);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_FALSE(early.pending());
  EXPECT_EQ(loop->waitOnce(5ms), 0u);
}

TEST(EventLoop, TimerMayReplaceItself) {
  auto loop = makeLoop();
  int rounds = 0;
  Timer timer;
  std::function<void()> tick = [&] {
    if (++rounds < 3) timer = loop->after(0ns, tick);
  };
  timer = loop->after(0ns, tick);
  // One round per turn: a function that re-arms itself cannot keep the loop from returning.
  EXPECT_EQ(loop->waitOnce(kLong), 1u);
  EXPECT_EQ(rounds, 1);
  while (rounds < 3) ASSERT_EQ(loop->waitOnce(kLong), 1u);
  EXPECT_EQ(loop->poll(), 0u);
}

TEST(EventLoop, PostsRunInOrderAndLaterOnesNextTurn) {
  auto loop = makeLoop();
  std::vector<int> order;
  loop->post([&] {
    order.push_back(1);
    loop->post([&] { order.push_back(3); });
  });
  loop->post([&] { order.push_back(2); });
  EXPECT_EQ(loop->poll(), 2u);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  EXPECT_EQ(loop->waitOnce(kLong), 1u);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(EventLoop, SpinSeesPostsAtOnceAndDescriptorsSoon) {
  auto loop = makeLoop();
  loop->poll();
  int posted = 0;
  loop->post([&] { ++posted; });
  EXPECT_EQ(loop->spin(), 1u);
  Fd event = makeEventFd().value();
  Watch watch = loop->watch(event.get(), true, false, [&] { drainEventFd(event.get()); }).value();
  signalEventFd(event.get());
  auto limit = Clock::now() + kLong;
  while (loop->spin() == 0) ASSERT_LT(Clock::now(), limit);
}

// Looks at descriptors are rare while nothing happens, but what answers a function's message is
// seen in the next microseconds.
TEST(EventLoop, SpinSeesAnAnswerInTheNextMoment) {
  auto loop = makeLoop();
  const Fd answer = makeEventFd().value();
  int seen = 0;
  const auto count = [&] {
    ++seen;
    drainEventFd(answer.get());
  };
  const Watch watch = loop->watch(answer.get(), true, false, count).value();
  loop->poll();
  for (int round = 1; round <= 100; ++round) {
    loop->post([&] { signalEventFd(answer.get()); });
    ASSERT_EQ(loop->spin(), 1u);
    const auto begin = Clock::now();
    while (Clock::now() - begin < std::chrono::microseconds(2)) {
    }
    ASSERT_EQ(loop->spin(), 1u) << "round " << round;
    EXPECT_EQ(seen, round);
  }
}

TEST(EventLoop, WaitEndsAtItsTimeout) {
  auto loop = makeLoop();
  for (auto timeout : {EventLoop::Duration(200us), EventLoop::Duration(3ms)}) {
    auto start = Clock::now();
    EXPECT_EQ(loop->waitOnce(timeout), 0u);
    EXPECT_GE(Clock::now() - start, timeout);
  }
  // An old deadline does not end a later wait.
  loop->post([] {});
  EXPECT_EQ(loop->waitOnce(100us), 1u);
  auto start = Clock::now();
  EXPECT_EQ(loop->waitOnce(5ms), 0u);
  EXPECT_GE(Clock::now() - start, 5ms);
}

TEST(EventLoop, WakeEndsTheNextWaitOnce) {
  auto loop = makeLoop();
  loop->wake();
  loop->wake();
  auto start = Clock::now();
  EXPECT_EQ(loop->waitOnce(kLong), 0u);
  // clock: half of the 20 s that a wait takes which nothing wakes
  EXPECT_LT(Clock::now() - start, kLong / 2);
  start = Clock::now();
  EXPECT_EQ(loop->waitOnce(2ms), 0u);
  EXPECT_GE(Clock::now() - start, 2ms) << "one wake, also when asked for twice, ends one wait";
}

TEST(EventLoop, NestedTurnIsAMistake) {
  auto loop = makeLoop();
  loop->post([&] { loop->poll(); });
  EXPECT_DEATH(loop->poll(), "inTurn");
}

TEST(EventLoop, OtherThreadsPostAndWakeASleepingLoop) {
  auto loop = makeLoop();
  constexpr int kThreads = 3;
  constexpr int kPosts = 2000;
  std::vector<int> last(kThreads, -1);  // touched by the loop's thread only
  int ran = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kPosts; ++i) {
        loop->post([&, t, i] {
          EXPECT_EQ(last[t], i - 1);
          last[t] = i;
          ++ran;
        });
        if (i % 64 == 0) loop->wake();
      }
    });
  }
  while (ran < kThreads * kPosts) loop->waitOnce(kLong);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ran, kThreads * kPosts);
}

// The sleeper must not miss a signal given at any moment around its falling asleep.
TEST(EventLoop, NoWakeUpIsLost) {
  auto loop = makeLoop();
  auto answer = makeLoop();
  constexpr int kRounds = 3000;
  const auto waitOn = [](EventLoop& one, Clock::duration& longest) {
    const auto start = Clock::now();
    const size_t ran = one.waitOnce(kLong);
    longest = std::max<Clock::duration>(longest, Clock::now() - start);
    return static_cast<int>(ran);
  };
  Clock::duration longest{}, longestOfOther{};
  std::thread other([&] {
    int seen = 0;
    for (int i = 0; i < kRounds; ++i) {
      loop->post([&] { answer->post([&] { ++seen; }); });
      while (seen <= i) waitOn(*answer, longestOfOther);
    }
  });
  int turns = 0;
  while (turns < kRounds) turns += waitOn(*loop, longest);
  other.join();
  EXPECT_EQ(turns, kRounds);
  // clock: half of the 20 s that a wait takes which nothing wakes
  EXPECT_LT(std::max(longest, longestOfOther), kLong / 2) << "a lost wake-up costs a whole timeout";
}

TEST(EventLoop, DescriptorWakesASleepingLoop) {
  auto loop = makeLoop();
  Fd ping = makeEventFd().value();
  Fd pong = makeEventFd().value();
  constexpr int kRounds = 2000;
  int rounds = 0;
  Watch watch = loop->watch(ping.get(), true, false,
                            [&] {
                              drainEventFd(ping.get());
                              ++rounds;
                              signalEventFd(pong.get());
                            })
                    .value();
  std::thread other([&] {
    auto mine = makeLoop();
    int seen = 0;
    Watch back = mine->watch(pong.get(), true, false,
                             [&] {
                               drainEventFd(pong.get());
                               ++seen;
                             })
                     .value();
    for (int i = 0; i < kRounds; ++i) {
      signalEventFd(ping.get());
      while (seen <= i) mine->waitOnce(kLong);
    }
  });
  while (rounds < kRounds) loop->waitOnce(kLong);
  other.join();
  EXPECT_EQ(rounds, kRounds);
}

}  // namespace
}  // namespace peerlane
