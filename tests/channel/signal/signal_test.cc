// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/signal/signal.h"

#include <fcntl.h>
#include <poll.h>

#include <atomic>
#include <string>
#include <thread>

#include "peerlane/session/peer/peer_core.h"
#include "tests/channel/context_pair.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

class SignalTest : public testing::TestWithParam<RouteCase> {
 protected:
  SignalTest() : pair_(configFor(GetParam())) {}
  ContextPair pair_;
};

INSTANTIATE_TEST_SUITE_P(Routes, SignalTest, everyRoute(), routeName);

TEST_P(SignalTest, EachNumberIsACounterOfItsOwn) {
  for (const uint32_t number : {0, 1, 63}) {
    const auto sent = addSignal(pair_.toB, number, number + 10);
    ASSERT_OK(sent.status());
    ASSERT_OK(sent->wait(kSoon));
  }
  for (uint32_t number = 0; number < Signal::kCount; ++number) {
    const Signal signal = MUST(Signal::create(pair_.toA, number));
    const bool added = number == 0 || number == 1 || number == 63;
    EXPECT_EQ(signal.value(), added ? number + 10 : 0) << number;
    const Signal other = MUST(Signal::create(pair_.toB, number));
    EXPECT_EQ(other.value(), 0u) << "the sender's own counters are others";
  }
}

TEST_P(SignalTest, RefusesNumbersThatDoNotExist) {
  const auto signal = Signal::create(pair_.toA, 64);
  EXPECT_EQ(signal.status().code(), Code::kInvalidArgument);
  EXPECT_NE(signal.status().message().find("64"), std::string_view::npos);
  EXPECT_EQ(Signal::create(Peer(), 0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(addSignal(pair_.toB, 64).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(addSignal(Peer(), 0).status().code(), Code::kInvalidArgument);
  const auto large = addSignal(pair_.toB, 0, uint64_t{1} << 62);
  EXPECT_EQ(large.status().code(), Code::kInvalidArgument) << "it would be poison";
  EXPECT_EQ(MUST(Signal::create(pair_.toA, 0)).value(), 0u);
}

TEST_P(SignalTest, WaitTimesOutAndGoesOn) {
  const Signal signal = MUST(Signal::create(pair_.toA, 7));
  EXPECT_OK(signal.wait(0, 0ms));
  EXPECT_EQ(signal.wait(1, 10ms).code(), Code::kTimeout);
  ASSERT_OK(addSignal(pair_.toB, 7).status());
  EXPECT_OK(signal.wait(1, kSoon));
  EXPECT_EQ(signal.wait(2, 10ms).code(), Code::kTimeout);
  // The longest time there is means for ever, not the past.
  std::thread later([&] { EXPECT_OK(addSignal(pair_.toB, 7).status()); });
  EXPECT_OK(signal.wait(2, std::chrono::nanoseconds::max()));
  later.join();
}

TEST_P(SignalTest, ManyThreadsAddAndManyWait) {
  constexpr uint64_t kEach = 500;
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < kEach; ++i) {
        const auto sent = addSignal(pair_.toB, 2);
        if (!sent.isOk() || !sent->wait(kSoon).isOk()) failed.fetch_add(1);
      }
    });
    threads.emplace_back([&] {
      const Signal signal = MUST(Signal::create(pair_.toA, 2));
      for (uint64_t i = 1; i <= 3 * kEach; ++i)
        if (!signal.wait(i, kSoon).isOk()) failed.fetch_add(1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed.load(), 0);
  EXPECT_EQ(MUST(Signal::create(pair_.toA, 2)).value(), 3 * kEach);
}

TEST_P(SignalTest, PingPongs) {
  constexpr uint64_t kRounds = 2000;
  std::thread other([&] {
    const Signal ping = MUST(Signal::create(pair_.toA, 0));
    for (uint64_t i = 1; i <= kRounds; ++i) {
      EXPECT_OK(ping.wait(i, kSoon));
      EXPECT_OK(addSignal(pair_.toA, 0).status());
    }
  });
  const Signal pong = MUST(Signal::create(pair_.toB, 0));
  for (uint64_t i = 1; i <= kRounds; ++i) {
    EXPECT_OK(addSignal(pair_.toB, 0).status());
    EXPECT_OK(pong.wait(i, kSoon));
  }
  other.join();
}

TEST_P(SignalTest, AWaitEndsWithThePeer) {
  const Signal signal = MUST(Signal::create(pair_.toA, 3));
  std::thread waiter([&] { EXPECT_EQ(signal.wait(1, kSoon).code(), Code::kPeerLost); });
  pair_.toB.close();
  waiter.join();
  EXPECT_EQ(signal.value(), 0u) << "the word outlives the connection";
  EXPECT_EQ(signal.wait(1, kSoon).code(), Code::kPeerLost);
}

// Both look at a descriptor as an event loop does: no turn is taken by the looking thread.
bool isReadable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}
bool becomesReadable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, static_cast<int>(std::chrono::milliseconds(kSoon).count())) == 1;
}

TEST_P(SignalTest, ADescriptorTellsOfEachValue) {
  const Signal signal = MUST(Signal::create(pair_.toA, 4));
  EXPECT_TRUE(isReadable(MUST(signal.fd(0))));
  uint64_t sum = 0;
  for (int round = 0; round < 50; ++round) {
    const int fd = MUST(signal.fd(sum + 3));
    EXPECT_EQ(fd, MUST(signal.fd(sum + 3)));
    EXPECT_FALSE(isReadable(fd));
    ASSERT_OK(MUST(addSignal(pair_.toB, 4, 2)).wait(kSoon));
    EXPECT_FALSE(isReadable(fd)) << "2 of 3";
    ASSERT_OK(addSignal(pair_.toB, 4, 5).status());
    ASSERT_TRUE(becomesReadable(fd)) << "round " << round;
    sum += 7;
    EXPECT_EQ(signal.value(), sum);
    EXPECT_TRUE(isReadable(MUST(signal.fd(sum)))) << "reached already";
  }
}

// The word of the context's bell once nothing has polled or left for a while: then, as a rule, only
// a ring wakes its threads. The length of the while is what lets a test notice a ring too few; none
// fails because of it.
uint64_t wordAtRest(const Peer& peer) {
  using Clock = std::chrono::steady_clock;
  const std::atomic<uint64_t>* const word =
      Bell::wordIn(peer.core()->progress().bell().page().data());
  uint64_t last = word->load();
  for (auto since = Clock::now(); Clock::now() - since < 5ms; std::this_thread::yield())
    if (const uint64_t now = word->load(); now != last || bell_word::isPolling(now)) {
      last = now;
      since = Clock::now();
    }
  return last;
}

// A store into mapped memory costs the producer a system call only where somebody waits for it.
TEST_P(SignalTest, WhatNobodyWaitsForWakesNobody) {
  Config config = configFor(GetParam());
  config.heartbeat = 10min;  // it wakes everybody
  const ContextPair pair(config);
  const Signal signal = MUST(Signal::create(pair.toA, 8));
  // Where the words are mapped: the value of the consumer's word at the last ring.
  const std::atomic<uint64_t>* const rungAt = pair.toB.core()->link().traits().signalWaker.rungAt;
  constexpr uint64_t kAdds = 8;
  for (uint64_t i = 1; i <= kAdds; ++i) {
    wordAtRest(pair.toA);
    const uint64_t before = rungAt == nullptr ? 0 : rungAt->load();
    ASSERT_OK(MUST(addSignal(pair.toB, 8)).wait(kSoon));
    if (rungAt != nullptr) {
      EXPECT_EQ(rungAt->load(), before) << "it rang";
    }
  }
  const int fd = MUST(signal.fd(kAdds + 1));
  EXPECT_FALSE(isReadable(fd));
  wordAtRest(pair.toA);
  ASSERT_OK(addSignal(pair.toB, 8).status());
  EXPECT_TRUE(becomesReadable(fd)) << "the descriptor listens";
  std::thread waiter([&] {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_OK(signal.wait(kAdds + 2, kSoon));
    // clock: a waiter that is not woken looks when all of its 20 s are over
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kSoon) << "it looked at the end only";
  });
  while (pair.b->dump().find("signal 8 of") == std::string::npos) std::this_thread::yield();
  wordAtRest(pair.toA);
  ASSERT_OK(addSignal(pair.toB, 8).status());
  waiter.join();
}

TEST_P(SignalTest, TwoOfOneNumberWaitForTwoValues) {
  const Signal first = MUST(Signal::create(pair_.toA, 9)),
               second = MUST(Signal::create(pair_.toA, 9));
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): a copy is what is looked at
  const Signal copy = first;
  const int one = MUST(first.fd(1)), two = MUST(second.fd(2));
  EXPECT_NE(one, two);
  EXPECT_EQ(MUST(copy.fd(1)), one);
  ASSERT_OK(addSignal(pair_.toB, 9).status());
  EXPECT_TRUE(becomesReadable(one));
  EXPECT_FALSE(isReadable(two));
  ASSERT_OK(addSignal(pair_.toB, 9).status());
  EXPECT_TRUE(becomesReadable(two));
}

TEST_P(SignalTest, TheDescriptorGoesWithTheLastCopy) {
  int fd = -1;
  {
    const Signal signal = MUST(Signal::create(pair_.toA, 2));
    // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): a copy is what is looked at
    const Signal copy = signal;
    fd = MUST(copy.fd(1));
    EXPECT_GE(::fcntl(fd, F_GETFD), 0);
  }
  EXPECT_LT(::fcntl(fd, F_GETFD), 0);
  // What was added to it since is nobody's business, and harmless.
  ASSERT_OK(MUST(addSignal(pair_.toB, 2)).wait(kSoon));
  EXPECT_EQ(MUST(Signal::create(pair_.toA, 2)).value(), 1u);
}

TEST_P(SignalTest, TheDescriptorTellsOfThePeersEnd) {
  const Signal signal = MUST(Signal::create(pair_.toA, 1));
  const int fd = MUST(signal.fd(1));
  EXPECT_FALSE(isReadable(fd));
  pair_.a.reset();
  EXPECT_TRUE(becomesReadable(fd));
  EXPECT_EQ(signal.wait(1, 0ms).code(), Code::kPeerLost);
  EXPECT_TRUE(isReadable(MUST(signal.fd(2)))) << "asked for afterwards";
}

TEST_P(SignalTest, ADumpNamesWhatADescriptorWaitsFor) {
  const Signal signal = MUST(Signal::create(pair_.toA, 6));
  ASSERT_OK(signal.fd(5).status());
  const std::string dump = pair_.b->dump();
  EXPECT_NE(dump.find("descriptor for signal 6 of peer"), std::string::npos) << dump;
  EXPECT_NE(dump.find("which is 0, to reach 5"), std::string::npos) << dump;
}

}  // namespace
}  // namespace peerlane
