// SPDX-License-Identifier: Apache-2.0
//
// Port channels between two services of the host, over every link: threads call what kernels call.
// Letters and numbers in comments are those of the table in docs/port_channel.md.
#include "tests/channel/port/port_pair.h"
#include "tests/core/soon.h"
#include "tests/os/file_memory.h"

namespace peerlane {
namespace {

constexpr uint64_t kKi = 1024, kMi = 1024 * kKi;

INSTANTIATE_TEST_SUITE_P(Routes, PortRouteTest, everyRouteAndVerbs(), routeName);

// D3 D5: words go there and back, each with the number of its round; with wait and with poll; by
// whoever is chosen (all of the rounds, with waits), and by the proxy (a tenth of them).
TEST_P(PortRouteTest, PingPong) {
#if defined(__SANITIZE_THREAD__)  // it looks at each word that the library copies
  constexpr uint64_t kLarge = kMi / 8, kLargest = kMi / 2;
#else
  constexpr uint64_t kLarge = kMi, kLargest = 4 * kMi;
#endif
  ASSERT_OK(open(kLargest * 4 * 2, {}));
  const auto play = [&](PortSide& side, bool isFirst, uint64_t words, uint32_t rounds, bool polls,
                        PortEngine engine) {
    const PortChannelHandle channel = side.handle(engine);
    std::byte* const in = side.data() + kLargest * 4;
    const auto send = [&](uint32_t round) {
      fillWords(side.data(), words, round * 2 + (isFirst ? 0 : 1));
      ASSERT_TRUE(channel.putWithSignal(kThread, kLargest * 4, 0, words * 4));
    };
    for (uint32_t round = 1; round <= rounds; ++round) {
      if (isFirst) send(round);
      if (polls) {
        for (;;) {
          const PortResult polled = channel.poll(kThread);
          if (polled) break;
          ASSERT_EQ(polled.outcome, PortOutcome::kTimeout) << side.channel.status().toString();
          std::this_thread::yield();
        }
      } else {
        ASSERT_TRUE(channel.wait(kThread, 1, kSoonNs)) << side.channel.status().toString();
      }
      ASSERT_EQ(firstWrongWord(in, words, round * 2 + (isFirst ? 1 : 0)), words) << round;
      if (!isFirst) send(round);
    }
    // The thread sanitizer does not see that the peer's answer came behind the proxy's copies.
    ASSERT_TRUE(channel.flush(kThread, kSoonNs));
  };
  struct Size {
    uint64_t words;
    uint32_t rounds;
  };
  for (const Size size : {Size{1, 1000}, Size{kKi, 1000}, Size{kLarge, 4}, Size{kLargest, 2}})
    for (const bool polls : {false, true})
      for (const PortEngine engine : {PortEngine::kAuto, PortEngine::kCe}) {
        SCOPED_TRACE(std::to_string(size.words) + (polls ? " polls" : " waits"));
        const bool isMain = !polls && engine == PortEngine::kAuto;
        const uint32_t rounds = isMain ? size.rounds : (size.rounds + 9) / 10;
        std::thread other([&] { play(b(), false, size.words, rounds, polls, engine); });
        play(a(), true, size.words, rounds, polls, engine);
        other.join();
        if (HasFatalFailure()) return;
      }
  for (const PortSide* side : {&a(), &b()}) {
    EXPECT_OK(side->service->status());
    EXPECT_OK(side->channel.status());
    EXPECT_EQ(side->handle().poll(kThread).outcome, PortOutcome::kTimeout) << "one signal too many";
  }
}

// C4: what flush returned for may be written again at once, and nobody sees it.
TEST_P(PortRouteTest, TheSourceMayBeWrittenAfterAFlush) {
  constexpr uint64_t kMost = kMi;
  ASSERT_OK(open(kMost * 4));
  for (const PortEngine engine : {PortEngine::kAuto, PortEngine::kCe}) {
    const PortChannelHandle channel = a().handle(engine);
    for (const uint64_t words : {kKi, 32 * kKi, kMost})
      for (uint32_t round = 1; round <= 5; ++round) {
        fillWords(a().data(), words, round);
        ASSERT_TRUE(channel.put(kThread, 0, 0, words * 4));
        ASSERT_TRUE(channel.flush(kThread, kSoonNs)) << a().channel.status().toString();
        fillWords(a().data(), words, 999);
        ASSERT_TRUE(channel.signal(kThread));
        ASSERT_TRUE(b().handle().wait(kThread, 1, kSoonNs));
        ASSERT_EQ(firstWrongWord(b().data(), words, round), words);
      }
  }
}

TEST_P(PortRouteTest, PutWithSignalAndFlushIsAllThree) {
  constexpr uint64_t kWords = 64 * kKi;
  ASSERT_OK(open(kWords * 4));
  for (const PortEngine engine : {PortEngine::kAuto, PortEngine::kCe})
    for (const uint64_t words : {uint64_t{1}, kWords})
      for (uint32_t round = 1; round <= 20; ++round) {
        fillWords(a().data(), words, round);
        ASSERT_TRUE(a().handle(engine).putWithSignalAndFlush(kThread, 0, 0, words * 4, kSoonNs));
        fillWords(a().data(), words, 999);
        ASSERT_TRUE(b().handle().wait(kThread, 1, kSoonNs));
        ASSERT_EQ(firstWrongWord(b().data(), words, round), words);
      }
}

TEST_P(PortRouteTest, GetBringsThePeersBytes) {
  constexpr uint64_t kMost = kMi, kShift = 4096;
  ASSERT_OK(open(kMost * 4 + kShift));
  for (const PortEngine engine : {PortEngine::kAuto, PortEngine::kCe}) {
    const PortChannelHandle channel = a().handle(engine);
    for (const uint64_t words : {uint64_t{1}, kKi, kMost}) {
      const auto first = static_cast<uint32_t>(words + static_cast<uint32_t>(engine));
      fillWords(b().data(), words, first);
      fillWords(a().data() + kShift, words, 0);
      ASSERT_TRUE(channel.get(kThread, kShift, 0, words * 4));
      ASSERT_TRUE(channel.flush(kThread, kSoonNs)) << a().channel.status().toString();
      ASSERT_EQ(firstWrongWord(a().data() + kShift, words, first), words);
    }
  }
}

// F6: the other side's service never runs and nobody calls there: all of the origin's calls end.
TEST_P(PortRouteTest, TheTargetDoesNothing) {
  constexpr uint64_t kWords = 32 * kKi;
  ASSERT_OK(open(kWords * 8, {}, false));
  ASSERT_OK(a().service->start());
  fillWords(a().data(), kWords, 5);
  fillWords(b().data() + kWords * 4, kWords, 6);
  for (const PortEngine engine : {PortEngine::kAuto, PortEngine::kCe}) {
    const PortChannelHandle channel = a().handle(engine);
    ASSERT_TRUE(channel.putWithSignal(kThread, 0, 0, kWords * 4));
    ASSERT_TRUE(channel.get(kThread, kWords * 4, kWords * 4, kWords * 4));
    ASSERT_TRUE(channel.signal(kThread, 2));
    ASSERT_TRUE(channel.flush(kThread, kSoonNs)) << a().channel.status().toString();
    EXPECT_EQ(firstWrongWord(a().data() + kWords * 4, kWords, 6), kWords);
  }
  EXPECT_EQ(firstWrongWord(b().data(), kWords, 5), kWords);
  EXPECT_TRUE(b().handle().wait(kThread, 6, kSoonNs));
}

TEST_P(PortRouteTest, CountsAddUp) {
  ASSERT_OK(open(4096));
  const PortChannelHandle there = b().handle();
  for (const PortEngine engine : {PortEngine::kAuto, PortEngine::kCe}) {
    const PortChannelHandle channel = a().handle(engine);
    ASSERT_TRUE(channel.putWithSignal(kThread, 0, 0, 64, 3));
    ASSERT_TRUE(channel.signal(kThread, 4));
    ASSERT_TRUE(channel.signal(kThread));
    ASSERT_TRUE(there.wait(kThread, 2, kSoonNs));
    ASSERT_TRUE(there.wait(kThread, 5, kSoonNs));
    ASSERT_TRUE(there.wait(kThread, 1, kSoonNs));
    EXPECT_EQ(there.poll(kThread).outcome, PortOutcome::kTimeout);
  }
  EXPECT_EQ(there.semaphore.value(), 16u);
  EXPECT_TRUE(there.semaphore.waitUntil(kThread, 16, kSoonNs)) << "that consumes nothing";
  EXPECT_EQ(there.semaphore.waitUntil(kThread, 17, 1000).outcome, PortOutcome::kTimeout);
}

// As many as it says, also none, and more than a request has room for.
TEST_P(PortRouteTest, CountsOfAnySize) {
  ASSERT_OK(open(4096));
  const PortChannelHandle there = b().handle();
  const uint64_t many = (uint64_t{1} << port::kValueBits) + 5;
  uint64_t total = 0;
  for (const PortEngine engine : {PortEngine::kAuto, PortEngine::kCe}) {
    const PortChannelHandle channel = a().handle(engine);
    ASSERT_TRUE(channel.putWithSignal(kThread, 0, 0, 64, 0));
    ASSERT_TRUE(channel.signal(kThread, 0));
    ASSERT_TRUE(channel.flush(kThread, kSoonNs));
    EXPECT_EQ(there.semaphore.value(), total);
    ASSERT_TRUE(channel.signal(kThread, many));
    ASSERT_TRUE(there.wait(kThread, many, kSoonNs));
    EXPECT_EQ(there.semaphore.value(), total += many);
  }
}

TEST_P(PortRouteTest, SignalToRaisesToATotal) {
  ASSERT_OK(open(4096));
  const PortChannelHandle there = b().handle();
  uint64_t total = 0;
  for (const PortEngine engine : {PortEngine::kAuto, PortEngine::kCe}) {
    const PortChannelHandle channel = a().handle(engine);
    ASSERT_TRUE(channel.signalTo(kThread, total += 5));
    ASSERT_TRUE(channel.signalTo(kThread, total - 2)) << "that much it is";
    ASSERT_TRUE(channel.signalTo(kThread, total));
    ASSERT_TRUE(there.wait(kThread, 5, kSoonNs));
    ASSERT_TRUE(channel.signal(kThread));
    ASSERT_TRUE(channel.signalTo(kThread, total + 3));
    total += 3;
    ASSERT_TRUE(channel.flush(kThread, kSoonNs));
    ASSERT_TRUE(there.wait(kThread, 3, kSoonNs));
    EXPECT_EQ(there.semaphore.value(), total);
  }
}

TEST_P(PortRouteTest, AWaitThatTimesOutConsumesNothing) {
  ASSERT_OK(open(4096));
  const PortChannelHandle there = b().handle();
  EXPECT_EQ(there.wait(kThread, 1, 1'000'000).outcome, PortOutcome::kTimeout);
  EXPECT_EQ(there.wait(kThread, 1, 0).outcome, PortOutcome::kTimeout);
  ASSERT_TRUE(a().handle().signal(kThread));
  ASSERT_TRUE(there.semaphore.waitUntil(kThread, 1, kSoonNs));
  EXPECT_EQ(there.wait(kThread, 2, 1'000'000).outcome, PortOutcome::kTimeout);
  EXPECT_EQ(there.poll(kThread, 2).outcome, PortOutcome::kTimeout);
  EXPECT_TRUE(there.wait(kThread, 1, 0)) << "what is there is taken without a bound's help";
  EXPECT_EQ(there.poll(kThread).outcome, PortOutcome::kTimeout);
  // The same by the host.
  EXPECT_EQ(b().semaphore.wait(1, std::chrono::milliseconds(1)).code(), Code::kTimeout);
  ASSERT_OK(a().semaphore.signal(2));
  EXPECT_OK(b().semaphore.wait(1, kSoon));
  EXPECT_OK(b().semaphore.wait(1, kSoon));
  EXPECT_EQ(b().semaphore.wait(1, std::chrono::nanoseconds(0)).code(), Code::kTimeout);
}

// Signals are neither lost nor taken twice, whoever gives and takes them.
TEST_P(PortRouteTest, SeveralThreadsSignalAndWait) {
  constexpr int kThreads = 3, kEach = 200;
  ASSERT_OK(open(4096));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const PortChannelHandle channel = a().handle(t == 0 ? PortEngine::kCe : PortEngine::kAuto);
      for (int i = 0; i < kEach; ++i) ASSERT_TRUE(channel.signal(kThread));
    });
    threads.emplace_back([&, t] {
      const PortChannelHandle channel = b().handle();
      for (int i = 0; i < kEach; ++i) {
        if (t == 0)
          ASSERT_TRUE(channel.wait(kThread));
        else if (t == 1)
          ASSERT_TRUE(channel.wait(kThread, 1, kSoonNs));
        else
          while (!channel.poll(kThread)) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(b().handle().semaphore.value(), uint64_t{kThreads} * kEach);
  EXPECT_EQ(b().handle().poll(kThread).outcome, PortOutcome::kTimeout);
}

// By blocks: four CPU threads stand for the threads of one, at each side.
TEST_P(PortRouteTest, ABlockPingPong) {
  constexpr uint32_t kCrew = 4;
  constexpr uint64_t kMost = 256 * kKi;
  ASSERT_OK(open(kMost * 2));
  const auto play = [&](PortSide& side, bool isFirst) {
    port::Crew::Shared shared(kCrew);
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (uint32_t rank = 0; rank < kCrew; ++rank)
      threads.emplace_back([&, rank] {
        const port::Crew crew(rank, shared);
        const PortChannelHandle channel = side.handle();
        uint32_t round = 0;
        // The last one is more than goes inline.
        for (const uint64_t bytes : {uint64_t{4}, uint64_t{60}, 4 * kKi, 100 * kKi, kMost}) {
          for (int i = 0; i < 5; ++i) {
            ++round;
            const auto send = [&] {
              if (rank == kCrew - 1) fillWords(side.data(), bytes / 4, round * 2 + isFirst);
              crew.sync();
              if (!channel.putWithSignal(crew, kMost, 0, bytes)) wrong.fetch_add(1);
            };
            if (isFirst) send();
            if (!channel.wait(crew, 1, kSoonNs)) wrong.fetch_add(1);
            if (firstWrongWord(side.data() + kMost, bytes / 4, round * 2 + !isFirst) != bytes / 4)
              wrong.fetch_add(1);
            crew.sync();
            if (!isFirst) send();
          }
        }
        // All of the block hear the same of a wait that is over.
        if (channel.wait(crew, 1, 1000).outcome != PortOutcome::kTimeout) wrong.fetch_add(1);
        if (channel.poll(crew).outcome != PortOutcome::kTimeout) wrong.fetch_add(1);
        if (!channel.get(crew, 0, kMost, 4 * kKi)) wrong.fetch_add(1);
        if (!channel.flush(crew, kSoonNs)) wrong.fetch_add(1);
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong.load(), 0) << side.channel.status().toString();
  };
  std::thread other([&] { play(b(), false); });
  play(a(), true);
  other.join();
}

// D4: there and back as packets, by a thread and by a block; no signal.
TEST_F(PortTest, PacketPingPong) {
  constexpr uint64_t kMost = 64 * kKi;
  ASSERT_OK(open(4 * kMost));
  const auto play = [&](PortSide& side, bool isFirst, uint32_t crewSize, uint32_t firstFlag) {
    port::Crew::Shared shared(crewSize);
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (uint32_t rank = 0; rank < crewSize; ++rank)
      threads.emplace_back([&, rank] {
        const port::Crew crew(rank, shared);
        const PortChannelHandle channel = side.handle();
        std::byte* const packets = side.data() + 2 * kMost;
        uint32_t flag = firstFlag;
        for (const uint64_t bytes : {uint64_t{8}, uint64_t{64}, 4 * kKi, kMost})
          for (int i = 0; i < 20; ++i, ++flag) {
            const auto send = [&] {
              if (rank == crewSize - 1) fillWords(side.data(), bytes / 4, flag * 2 + isFirst);
              if (!channel.putPackets(crew, 2 * kMost, 0, bytes, flag)) wrong.fetch_add(1);
            };
            if (isFirst) send();
            std::byte* const taken = side.data() + kMost;
            if (!channel.takePackets(crew, packets, taken, bytes, flag, kSoonNs))
              wrong.fetch_add(1);
            if (firstWrongWord(taken, bytes / 4, flag * 2 + !isFirst) != bytes / 4)
              wrong.fetch_add(1);
            crew.sync();
            if (!isFirst) send();
          }
        // Nothing more comes; all of the team hear the same.
        if (channel.takePackets(crew, packets, side.data() + kMost, 64, flag, 1000).outcome !=
            PortOutcome::kTimeout)
          wrong.fetch_add(1);
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong.load(), 0) << side.channel.status().toString();
  };
  uint32_t flag = 1;
  for (const uint32_t crewSize : {1u, 3u}) {
    std::thread other([&] { play(b(), false, crewSize, flag); });
    play(a(), true, crewSize, flag);
    other.join();
    flag += 1000;
  }
  // The end of the peer's service is heard while waiting.
  const PortChannelHandle last = b().handle();
  std::thread waiter([&] {
    EXPECT_EQ(last.takePackets(kThread, b().data() + 2 * kMost, b().data(), 8, ~0u).outcome,
              PortOutcome::kEnded);
  });
  a().service.reset();
  waiter.join();
}

TEST_F(PortTest, PacketsThatCannotGoAreRefused) {
  ASSERT_OK(open(4096));
  const PortChannelHandle channel = a().handle(PortEngine::kCe);
  const auto put = [&](uint64_t remote, uint64_t local, uint64_t bytes) {
    return channel.putPackets(kThread, remote, local, bytes, 1).outcome;
  };
  EXPECT_EQ(put(0, 0, 2048), PortOutcome::kOk);
  EXPECT_EQ(put(0, 0, 2056), PortOutcome::kInvalid) << "they need twice the room";
  EXPECT_NE(a().channel.status().message().find("outside the memory"), std::string_view::npos);
  EXPECT_EQ(put(4096 - 16, 4096 - 8, 8), PortOutcome::kOk);
  EXPECT_EQ(put(4096, 0, 8), PortOutcome::kInvalid);
  EXPECT_EQ(put(0, 4096, 8), PortOutcome::kInvalid);
  EXPECT_EQ(put(0, 0, uint64_t{1} << 63), PortOutcome::kInvalid);
  for (const auto& [remote, local, bytes] :
       {std::tuple<uint64_t, uint64_t, uint64_t>{8, 0, 8}, {0, 4, 8}, {0, 0, 12}}) {
    EXPECT_EQ(put(remote, local, bytes), PortOutcome::kInvalid);
    EXPECT_NE(a().channel.status().message().find("multiples of 16"), std::string_view::npos)
        << a().channel.status().toString();
  }
  ASSERT_TRUE(a().handle().signal(kThread));
  EXPECT_TRUE(b().handle().wait(kThread, 1, kSoonNs)) << "nothing has ended";
}

// D6: four threads flush one channel.
TEST_P(PortRouteTest, FourThreadsFlushOneChannel) {
  constexpr uint64_t kBytes = kKi;
  ASSERT_OK(open(4 * kBytes));
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const PortChannelHandle channel = a().handle(PortEngine::kCe);
      for (uint32_t i = 1; i <= 500; ++i) {
        fillWords(a().data() + t * kBytes, kBytes / 4, i * 4 + t);
        ASSERT_TRUE(channel.put(kThread, t * kBytes, t * kBytes, kBytes));
        ASSERT_TRUE(channel.flush(kThread, kSoonNs)) << a().channel.status().toString();
        ASSERT_EQ(firstWrongWord(b().data() + t * kBytes, kBytes / 4, i * 4 + t), kBytes / 4);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

// D6: channels with connections of their own, each flushed by its own thread, 1 KiB to 8 MiB.
TEST_P(PortRouteTest, ChannelsFlushSideBySide) {
  constexpr uint64_t kMost = 8 * kMi, kOwn = 2 * kMi;
  ASSERT_OK(open(kMost));
  std::vector<PortChannel> channels{a().channel};
  for (const uint32_t count : {1, 2, 4}) {
    while (channels.size() < count)
      channels.push_back(ports_.link(static_cast<uint32_t>(100 + channels.size()), true).first);
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < count; ++t)
      threads.emplace_back([&, t] {
        const PortChannelHandle channel = channels[t].deviceHandle(PortEngine::kCe);
        const uint64_t at = t * kOwn;
        for (const uint64_t bytes : {kKi, 64 * kKi, kMi, kMost / count}) {
          const uint64_t words = std::min(bytes, kOwn) / 4;
          for (uint32_t i = 0; i < (bytes < kMi ? 20u : 2u); ++i) {
            fillWords(a().data() + at, words, i);
            ASSERT_TRUE(channel.put(kThread, at, at, words * 4));
            ASSERT_TRUE(channel.flush(kThread, kSoonNs));
            ASSERT_EQ(firstWrongWord(b().data() + at, words, i), words);
          }
        }
      });
    for (std::thread& thread : threads) thread.join();
    if (HasFatalFailure()) return;
  }
  // All of it in one.
  fillWords(a().data(), kMost / 4, 77);
  ASSERT_TRUE(channels[3].deviceHandle(PortEngine::kCe).put(kThread, 0, 0, kMost));
  ASSERT_TRUE(channels[3].deviceHandle(PortEngine::kCe).flush(kThread, kSoonNs));
  EXPECT_EQ(firstWrongWord(b().data(), kMost / 4, 77), kMost / 4);
}

// D6: what is asked for second on another connection does not wait for the first's last byte.
TEST_P(PortRouteTest, NoConnectionIsBehindAnother) {
  constexpr uint64_t kLong = 8 * kMi;
  ASSERT_OK(open(kLong, {}, false));
  const PortChannel other = ports_.link(8, true).first;
  const PortChannelHandle large = a().handle(PortEngine::kCe);
  const PortChannelHandle small = other.deviceHandle(PortEngine::kCe);
  // Once is enough: this thread may be kept from the CPU for as long as 192 MiB take.
  bool passes = false;
  for (int round = 0; round < 20 && !passes; ++round) {
    a().service->stop();
    for (int i = 0; i < 24; ++i) ASSERT_TRUE(large.put(kThread, 0, 0, kLong));
    ASSERT_TRUE(small.put(kThread, 0, 0, 64));
    ASSERT_OK(a().service->start());
    ASSERT_TRUE(small.flush(kThread, kSoonNs));
    passes = large.hasRequestsUnderWay();
    ASSERT_TRUE(large.flush(kThread, kSoonNs));
    ASSERT_FALSE(large.hasRequestsUnderWay());
  }
  EXPECT_TRUE(passes) << "192 MiB went first";
}

// Threads that found the proxy's work done go inline again: nobody has to flush for that.
TEST_P(PortRouteTest, WhatIsDoneIsPublishedUnasked) {
  ASSERT_OK(open(4096));
  const PortChannelHandle channel = a().handle(PortEngine::kCe);
  ASSERT_TRUE(channel.putWithSignal(kThread, 0, 0, 64));
  EXPECT_TRUE(soon([&] { return !channel.hasRequestsUnderWay(); }));
}

// F3: a FIFO of two slots, and far more requests than queue and mailbox hold, before anybody takes
// one: nothing is dropped.
TEST_P(PortRouteTest, MorePutsThanThereIsRoomFor) {
  constexpr uint32_t kPuts = 1500;
  ASSERT_OK(open(kPuts * 4, {.fifoSlots = 2}));
  fillWords(a().data(), kPuts, 3);
  const PortChannelHandle channel = a().handle(PortEngine::kCe);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      for (uint32_t i = t; i < kPuts; i += 3)
        ASSERT_TRUE(channel.putWithSignal(kThread, i * 4, i * 4, 4, i % 2 + 1));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(b().handle().wait(kThread, kPuts / 2 * 3, kSoonNs));
  EXPECT_EQ(firstWrongWord(b().data(), kPuts, 3), kPuts);
  EXPECT_EQ(b().handle().poll(kThread).outcome, PortOutcome::kTimeout);
}

// F3: asked for before the proxy runs, more than the queue takes at once.
TEST_P(PortRouteTest, RequestsWaitForTheProxy) {
  constexpr uint32_t kPuts = 3000;
  ASSERT_OK(open(kPuts * 4, {.fifoSlots = 4096}, false));
  fillWords(a().data(), kPuts, 3);
  const PortChannelHandle channel = a().handle(PortEngine::kCe);
  for (uint32_t i = 0; i < kPuts; ++i) ASSERT_TRUE(channel.put(kThread, i * 4, i * 4, 4));
  EXPECT_EQ(channel.flush(kThread, 1'000'000).outcome, PortOutcome::kTimeout);
  ASSERT_OK(a().service->start());
  EXPECT_TRUE(channel.flush(kThread, kSoonNs));
  EXPECT_EQ(firstWrongWord(b().data(), kPuts, 3), kPuts);
}

TEST_P(PortRouteTest, TheHostPutsGetsSignalsAndFlushes) {
  constexpr uint64_t kWords = 100 * kKi;
  ASSERT_OK(open(kWords * 8));
  fillWords(a().data(), kWords, 5);
  ASSERT_OK(a().channel.put(0, 0, kWords * 4));
  ASSERT_OK(a().channel.flush(kSoon));
  EXPECT_EQ(firstWrongWord(b().data(), kWords, 5), kWords);
  ASSERT_OK(a().channel.get(kWords * 4, 0, kWords * 4));
  ASSERT_OK(a().channel.flush(kSoon));
  EXPECT_EQ(firstWrongWord(a().data() + kWords * 4, kWords, 5), kWords);
  fillWords(a().data(), kWords, 6);
  ASSERT_OK(a().channel.putWithSignal(0, 0, kWords * 4));
  ASSERT_OK(b().semaphore.wait(1, kSoon));
  EXPECT_EQ(firstWrongWord(b().data(), kWords, 6), kWords);
  // A thread's wait and the host's take from one counter.
  ASSERT_OK(a().semaphore.signal(2));
  EXPECT_TRUE(b().handle().wait(kThread, 1, kSoonNs));
  EXPECT_OK(b().semaphore.wait(1, kSoon));
  a().service->stop();
  ASSERT_OK(a().channel.put(0, 0, 4));
  EXPECT_EQ(a().channel.flush(std::chrono::milliseconds(1)).code(), Code::kTimeout);
  ASSERT_OK(a().service->start());
  EXPECT_OK(a().channel.flush(kSoon));
}

TEST_P(PortRouteTest, SaysWhoCarriesOut) {
  ASSERT_OK(open(4096));
  const std::string engine = a().connection.engine();
  EXPECT_TRUE(engine == "cpu" || engine == "agent") << engine;
  EXPECT_NE(a().channel.explain().find("by the proxy: " + engine), std::string::npos);
  EXPECT_EQ(a().channel.isMapped(), a().channel.explain().find("not mapped") == std::string::npos);
  EXPECT_NE(a().service->dump().find("(tag 7)"), std::string::npos);
  // What cannot go inline is refused when it must.
  const PortResult inlined = a().handle(PortEngine::kInline).put(kThread, 0, 0, 64);
  EXPECT_EQ(inlined.outcome, a().channel.isMapped() ? PortOutcome::kOk : PortOutcome::kInvalid);
}

// A NIC goes on with the pages that it holds.
class PortOfAFile : public PortRouteTest {};
INSTANTIATE_TEST_SUITE_P(Routes, PortOfAFile, everyRoute(), routeName);

// Memory in a file that another process may cut: no thread of the CPU copies it plainly, so the
// loss fails the channel, and not the process.
TEST_P(PortOfAFile, FailsTheChannelWhereThatIsCut) {
  constexpr uint64_t kBytes = FileMemory::kBytes;
  constexpr std::byte kFill{0x5a};
  FileMemory file(kFill);
  const Region region =
      MUST(pair_.a->registerRegion(file.data(), kBytes, Access::kRemoteReadWrite));
  ASSERT_OK(open(kBytes));
  const MemoryId local = MUST(a().service->addMemory(region));
  const PortChannel channel = MUST(a().service->channel(a().semaphore, a().remote, local));
  EXPECT_FALSE(channel.isMapped());
  ASSERT_OK(channel.put(0, 0, kBytes));
  ASSERT_OK(channel.flush(kSoon));
  EXPECT_EQ(countOf(b().data(), kBytes, kFill), kBytes);
  file.lose(Loss::kCut);
  EXPECT_OK(channel.put(0, 0, kBytes));
  EXPECT_FALSE(channel.flush(kSoon).isOk());
  EXPECT_EQ(channel.status().code(), Code::kRevoked) << channel.status().toString();
  ports_.close();
  EXPECT_OK(pair_.a->unregister(region, kSoon));
}

}  // namespace
}  // namespace peerlane
