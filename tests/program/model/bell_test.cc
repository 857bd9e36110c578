// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/model/bell.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "peerlane/os/shm_segment.h"
#include "tests/os/child_process.h"
#include "tests/os/refused_calls.h"

namespace peerlane {
namespace {

bool readable(int fd, int milliseconds = 0) {
  pollfd wanted{fd, POLLIN, 0};
  return poll(&wanted, 1, milliseconds) == 1;
}

TEST(Bell, IsRungOnlyWhenNobodyPolls) {
  auto bell = Bell::create().value();
  const Waker waker = bell->localWaker();
  waker.ring();
  EXPECT_TRUE(readable(bell->eventFd()));
  drainEventFd(bell->eventFd());
  bell->enter();
  waker.ring();
  EXPECT_FALSE(readable(bell->eventFd()));
  bell->enter();
  bell->leave();
  waker.ring();
  EXPECT_FALSE(readable(bell->eventFd())) << "one of two still polls";
  bell->leave();
  waker.ring();
  EXPECT_TRUE(readable(bell->eventFd()));
}

TEST(Bell, AnEmptyWakerRingsNobody) {
  Waker().ring();  // must not write to descriptor -1 or read a null word
}

TEST(Bell, IsRungOnceInEachSleep) {
  auto bell = Bell::create().value();
  const Waker waker = bell->localWaker();
  for (int sleep = 0; sleep < 3; ++sleep) {
    for (int i = 0; i < 5; ++i) waker.ring();
    EXPECT_EQ(drainEventFd(bell->eventFd()), 1u) << "sleep " << sleep;
    bell->enter();
    bell->leave();
  }
}

TEST(Bell, ASignalRingsOnlyWhereSomebodyListens) {
  auto bell = Bell::create().value();
  Waker signal = bell->localWaker();
  signal.listeners = Bell::listenersIn(bell->page().data());
  signal.ring();
  EXPECT_FALSE(readable(bell->eventFd()));
  bell->listen();
  bell->listen();
  bell->stopListening();
  signal.ring();
  EXPECT_TRUE(readable(bell->eventFd())) << "one of two still listens; what rang nobody is no ring";
  drainEventFd(bell->eventFd());
  bell->stopListening();
  bell->enter();
  bell->leave();
  signal.ring();
  EXPECT_FALSE(readable(bell->eventFd()));
  bell->localWaker().ring();
  EXPECT_TRUE(readable(bell->eventFd())) << "other words ring as ever";
}

// Each peer has a socket, and what one of them did is no news to another.
TEST(Bell, EveryProducerRingsOnceInEachSleep) {
  auto bell = Bell::create().value();
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const Fd consumer(ends[0]);
  const Fd producer(ends[1]);
  std::atomic<uint64_t> rungAt{bell_word::kNever};
  const Waker far{Bell::wordIn(bell->page().data()), &rungAt, producer.get(), /*isSocket=*/true};
  for (int sleep = 0; sleep < 3; ++sleep) {
    bell->localWaker().ring();
    for (int i = 0; i < 5; ++i) far.ring();
    char bytes[16];
    EXPECT_EQ(recv(consumer.get(), bytes, sizeof bytes, MSG_DONTWAIT), 1) << "sleep " << sleep;
    bell->enter();
    bell->leave();
  }
}

// Where the system has no memory for a knock, the next store knocks.
TEST(Bell, WhatDidNotArriveIsRungAgain) {
  const pid_t process = fork();
  if (process == 0) {
    auto bell = Bell::create().value();
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) _exit(1);
    constexpr int kRefused = 256;  // a bit that no other descriptor here has
    if (dup2(ends[1], kRefused) < 0) _exit(2);
    refuseCalls(SYS_sendto, ENOBUFS, 0, kRefused);
    std::atomic<uint64_t> rungAt{bell_word::kNever};
    Waker{Bell::wordIn(bell->page().data()), &rungAt, kRefused, /*isSocket=*/true}.ring();
    if (readable(ends[0])) _exit(3);
    Waker{Bell::wordIn(bell->page().data()), &rungAt, ends[1], /*isSocket=*/true}.ring();
    _exit(readable(ends[0]) ? 0 : 4);
  }
  EXPECT_EQ(child::collect(process, child::Clock::now() + std::chrono::seconds(60)), 0);
}

TEST(Bell, ItsPageCanBeMappedReadOnlyByAnotherAndShowsWhetherSomebodyPolls) {
  auto bell = Bell::create().value();
  auto page =
      SharedSegment::import(duplicateFd(bell->page().fd()).value(), Bell::kPageBytes, 0, false);
  ASSERT_TRUE(page.isOk()) << page.status().toString();
  const std::atomic<uint64_t>* word = Bell::wordIn((*page)->data());
  EXPECT_FALSE(bell_word::isPolling(word->load()));
  bell->enter();
  EXPECT_TRUE(bell_word::isPolling(word->load()));
  std::atomic<uint64_t> rungAt{bell_word::kNever};
  const Waker far{word, &rungAt, bell->eventFd()};
  far.ring();
  EXPECT_FALSE(readable(bell->eventFd()));
  bell->leave();
  far.ring();
  EXPECT_TRUE(readable(bell->eventFd()));
}

// The rule itself: the consumer takes itself off, looks once more, sleeps in the kernel; the
// producer stores and rings. A lost wake-up shows as a poll that times out.
TEST(Bell, NoWakeUpIsLost) {
  auto bell = Bell::create().value();
  std::atomic<uint64_t> word{0};
  std::atomic<uint64_t> seen{0};
  constexpr uint64_t kRounds = 20000;
  std::thread producer([&] {
    const Waker waker = bell->localWaker();
    for (uint64_t i = 1; i <= kRounds; ++i) {
      word.store(i, std::memory_order_seq_cst);
      waker.ring();
      while (seen.load(std::memory_order_acquire) < i) std::this_thread::yield();
    }
  });
  bool lost = false;
  for (uint64_t i = 1; i <= kRounds && !lost; ++i) {
    bell->enter();
    for (int spin = 0; spin < 10 && word.load(std::memory_order_seq_cst) < i; ++spin) {
    }
    bell->leave();
    while (word.load(std::memory_order_seq_cst) < i && !lost) {
      lost = !readable(bell->eventFd(), 10000);
      drainEventFd(bell->eventFd());
    }
    seen.store(i, std::memory_order_release);
  }
  if (lost) seen.store(kRounds, std::memory_order_release);
  producer.join();
  EXPECT_FALSE(lost);
}

// A producer that waits for nobody rings once in each sleep only; the last store is seen all the
// same.
TEST(Bell, TheLastOfManyStoresWakesASleeper) {
  auto bell = Bell::create().value();
  std::atomic<uint64_t> word{0};
  constexpr uint64_t kStores = 2'000'000;
  std::thread producer([&] {
    const Waker waker = bell->localWaker();
    for (uint64_t i = 1; i <= kStores; ++i) {
      word.store(i, std::memory_order_seq_cst);
      waker.ring();
    }
  });
  bool lost = false;
  uint64_t sleeps = 0;
  while (!lost && word.load(std::memory_order_seq_cst) < kStores) {
    lost = !readable(bell->eventFd(), 10000);
    drainEventFd(bell->eventFd());
    bell->enter();
    bell->leave();
    ++sleeps;
  }
  producer.join();
  EXPECT_FALSE(lost) << "after " << sleeps << " sleeps";
}

}  // namespace
}  // namespace peerlane
