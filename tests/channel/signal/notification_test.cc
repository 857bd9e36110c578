// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/signal/notification.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <thread>

#include "peerlane/channel/blocks/block_program.h"
#include "peerlane/channel/signal/notification_inbox.h"
#include "peerlane/program/cpu/cpu_program.h"
#include "peerlane/program/words/word.h"
#include "peerlane/session/peer/peer_core.h"
#include "tests/channel/context_pair.h"
#include "tests/core/soon.h"
#include "tests/core/thread_sleeps.h"
#include "tests/program/model/scripted_agent.h"
#include "tests/progress/standing_callback.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

class NotificationTest : public testing::TestWithParam<RouteCase> {
 protected:
  NotificationTest() : pair_(configFor(GetParam())) {}
  static std::vector<std::byte> bytesOf(const std::string& text) {
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
  }
  static Transfer send(const Peer& peer, uint32_t tag, std::span<const std::byte> message) {
    Notify what;
    what.message = message;
    what.tag = tag;
    return MUST(notify(peer, what));
  }
  ContextPair pair_;
};

INSTANTIATE_TEST_SUITE_P(Routes, NotificationTest, everyRoute(), routeName);

TEST_P(NotificationTest, CarriesTagAndMessageOfEverySize) {
  EXPECT_EQ(pollNotification(pair_.toA).status().code(), Code::kTryAgain);
  for (const size_t bytes : {0, 1, 7, 8, 55, 56, 57, 1000, 4095, 4096}) {
    std::vector<std::byte> message(bytes);
    for (size_t i = 0; i < bytes; ++i) message[i] = static_cast<std::byte>(i * 13 + bytes);
    const Transfer sent = send(pair_.toB, static_cast<uint32_t>(bytes) ^ 0xf000'0000, message);
    const auto taken = waitNotification(pair_.toA, kSoon);
    ASSERT_OK(taken.status());
    EXPECT_EQ(taken->tag, static_cast<uint32_t>(bytes) ^ 0xf000'0000);
    EXPECT_EQ(taken->message, message) << bytes;
    EXPECT_OK(sent.wait(kSoon));
  }
  EXPECT_EQ(pollNotification(pair_.toA).status().code(), Code::kTryAgain);
}

TEST_P(NotificationTest, WaitTimesOut) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(waitNotification(pair_.toA, 20ms).status().code(), Code::kTimeout);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 20ms);
  EXPECT_EQ(pollNotification(Peer()).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(waitNotification(Peer(), 1ms).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(notificationFd(Peer()).status().code(), Code::kInvalidArgument);
}

TEST_P(NotificationTest, BothDirectionsAreIndependent) {
  const auto up = bytesOf("up");
  const auto down = bytesOf("down");
  const Transfer first = send(pair_.toB, 1, up);
  const Transfer second = send(pair_.toA, 2, down);
  const auto atB = waitNotification(pair_.toA, kSoon);
  const auto atA = waitNotification(pair_.toB, kSoon);
  ASSERT_OK(atB.status());
  ASSERT_OK(atA.status());
  EXPECT_EQ(atB->message, up);
  EXPECT_EQ(atA->message, down);
}

TEST_P(NotificationTest, TheDescriptorIsReadableWhileSomethingWaits) {
  const auto fd = notificationFd(pair_.toA);
  ASSERT_OK(fd.status());
  pollfd wanted{*fd, POLLIN, 0};
  EXPECT_EQ(poll(&wanted, 1, 0), 0);
  for (int round = 0; round < 50; ++round) {
    const uint32_t count = 1 + static_cast<uint32_t>(round) % 20;
    std::vector<Transfer> sent;
    for (uint32_t i = 0; i < count; ++i) sent.push_back(send(pair_.toB, i, bytesOf("x")));
    for (uint32_t i = 0; i < count;) {
      ASSERT_EQ(poll(&wanted, 1, 20'000), 1) << "round " << round << " after " << i;
      for (auto taken = pollNotification(pair_.toA); taken.isOk();
           taken = pollNotification(pair_.toA)) {
        EXPECT_EQ(taken->tag, i);
        ++i;
      }
    }
    EXPECT_EQ(poll(&wanted, 1, 0), 0) << "all were taken";
  }
}

TEST_P(NotificationTest, TheDescriptorTellsThePeersEndToo) {
  const auto fd = notificationFd(pair_.toA);
  ASSERT_OK(fd.status());
  pair_.toB.close();
  pollfd wanted{*fd, POLLIN, 0};
  EXPECT_EQ(poll(&wanted, 1, 20'000), 1);
  EXPECT_EQ(waitNotification(pair_.toA, kSoon).status().code(), Code::kPeerLost);
}

// A descriptor made late tells of what came before.
TEST_P(NotificationTest, TheDescriptorKnowsWhatWaitedBefore) {
  EXPECT_OK(send(pair_.toB, 3, {}).wait(kSoon));
  const auto fd = notificationFd(pair_.toA);
  ASSERT_OK(fd.status());
  pollfd wanted{*fd, POLLIN, 0};
  EXPECT_EQ(poll(&wanted, 1, 20'000), 1);
  EXPECT_EQ(pollNotification(pair_.toA)->tag, 3u);
}

// What the peer sent before it left is still to be had.
TEST_P(NotificationTest, WhatWasSentBeforeTheEndIsTaken) {
  (void)pollNotification(pair_.toA);
  for (uint32_t i = 0; i < 10; ++i) ASSERT_OK(send(pair_.toB, i, {}).wait(kSoon));
  pair_.toB.close();
  for (uint32_t i = 0; i < 10; ++i) {
    const auto taken = waitNotification(pair_.toA, kSoon);
    ASSERT_OK(taken.status());
    EXPECT_EQ(taken->tag, i);
  }
  EXPECT_EQ(waitNotification(pair_.toA, kSoon).status().code(), Code::kPeerLost);
}

// Many more than fit: senders wait for room, nothing is lost, and each thread's keep their order.
TEST_P(NotificationTest, TenThousandFromManyThreadsArriveInOrderOfPosting) {
  constexpr uint32_t kThreads = 4;
  constexpr uint32_t kEach = 2500;
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      std::vector<Transfer> window;
      for (uint32_t i = 0; i < kEach; ++i) {
        const uint64_t content[2] = {t, i};
        Notify what;
        what.message = std::as_bytes(std::span(content)).first(i % 3 == 0 ? 16 : 12);
        what.tag = t;
        auto sent = notify(pair_.toB, what);
        if (!sent.isOk()) {
          failed.fetch_add(1);
          return;
        }
        window.push_back(std::move(sent).value());
        if (window.size() == 32 || i + 1 == kEach) {
          for (const Transfer& transfer : window)
            if (!transfer.wait(60s).isOk()) failed.fetch_add(1);
          window.clear();
        }
      }
    });
  std::map<uint32_t, uint32_t> next;
  for (uint32_t i = 0; i < kThreads * kEach; ++i) {
    const auto taken = waitNotification(pair_.toA, 60s);
    ASSERT_OK(taken.status());
    ASSERT_GE(taken->message.size(), 12u);
    uint64_t thread = 0;
    uint32_t number = 0;
    std::memcpy(&thread, taken->message.data(), 8);
    std::memcpy(&number, taken->message.data() + 8, 4);
    ASSERT_EQ(thread, taken->tag);
    ASSERT_EQ(number, next[taken->tag]++);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed.load(), 0);
  EXPECT_EQ(pollNotification(pair_.toA).status().code(), Code::kTryAgain);
}

// The promise of the whole thing: when the message is seen, the bytes are there.
TEST_P(NotificationTest, IsSeenOnlyAfterTheBytesOfItsPut) {
  constexpr uint64_t kRounds = 400;
  constexpr uint64_t kBytes = 20'000;
  TestMemory near(*pair_.a, kBytes, GetParam().shared, Access::kRemoteReadWrite, 1);
  TestMemory far(*pair_.b, kBytes, GetParam().shared, Access::kRemoteReadWrite, 2);
  const RemoteRegion remote = far.importedBy(pair_.toB);
  std::atomic<uint64_t> wrong{0};
  std::thread receiver([&] {
    for (uint64_t i = 0; i < kRounds; ++i) {
      const auto taken = waitNotification(pair_.toA, kSoon);
      if (!taken.isOk() || taken->tag != i) {
        wrong.fetch_add(1);
        return;
      }
      uint32_t bytes = 0;
      std::memcpy(&bytes, taken->message.data(), 4);
      const std::vector<std::byte> expected(bytes, static_cast<std::byte>(i));
      if (firstDifference(far.data(), expected.data(), bytes) != bytes) wrong.fetch_add(1);
      Notify credit;
      credit.message = std::span<const std::byte>();
      if (const auto sent = notify(pair_.toA, credit); !sent.isOk() || !sent->wait(kSoon).isOk())
        wrong.fetch_add(1);
    }
  });
  for (uint64_t i = 0; i < kRounds; ++i) {
    const uint32_t bytes = static_cast<uint32_t>(1 + i * 7919 % kBytes);
    std::memset(near.data(), static_cast<int>(i & 0xff), bytes);
    const Block block{&near.region(), 0, &remote, 0, bytes};
    PostOptions options;
    options.notify.tag = static_cast<uint32_t>(i);
    options.notify.message = std::as_bytes(std::span(&bytes, 1));
    const auto transfer = put(pair_.toB, {&block, 1}, options);
    ASSERT_OK(transfer.status());
    ASSERT_OK(transfer->wait(kSoon));
    ASSERT_OK(waitNotification(pair_.toB, kSoon).status());
  }
  receiver.join();
  EXPECT_EQ(wrong.load(), 0u);
}

// One put may carry both; the signal is not seen before the bytes either.
TEST_P(NotificationTest, MayComeWithASignal) {
  Notify what;
  const auto text = bytesOf("both");
  what.message = text;
  what.signal = 9;
  what.signalAdd = 4;
  const Signal signal = MUST(Signal::create(pair_.toA, 9));
  const auto sent = notify(pair_.toB, what);
  ASSERT_OK(sent.status());
  EXPECT_OK(signal.wait(4, kSoon));
  EXPECT_EQ(waitNotification(pair_.toA, kSoon)->message, text);
  EXPECT_OK(sent->wait(kSoon));
  EXPECT_EQ(signal.value(), 4u);
}

// Wherever an agent stands when a notification is given up: its slot is published by a run that
// ended well, and by no other, so that it can be published as void.
TEST(NotificationProgram, AFailedRunHasPublishedNothing) {
  const ContextPair pair(configFor(kTcp));
  const PeerCore& peer = *pair.toB.core();
  const std::string text = "message";
  Notify what;
  what.message = std::as_bytes(std::span(text));
  what.signal = 5;
  constexpr size_t kEntries = 4;  // header, message, signal, number
  for (size_t begun = 0; begun <= kEntries; ++begun) {
    std::vector<std::byte> there(slab::kBytes);
    RemoteMemory memory;
    memory.linkKey = reinterpret_cast<uint64_t>(there.data());
    memory.grant.bytes = there.size();
    OwnedNotify owned = MUST(ownNotify(what));
    Program program;
    Binding binding;
    ASSERT_OK(BlockProgram().lower(peer, owned, program, binding));
    for (BoundTarget& target : binding.targets)
      if (target.remote != nullptr) target.remote = &memory;
    ScriptedAgent agent;
    std::vector<ScriptedAgent::Answer> answers(begun, ScriptedAgent::Answer::kSent);
    answers.resize(1000, ScriptedAgent::Answer::kAgain);
    agent.script(answers);
    Mailbox mailbox(agent);
    binding.mailbox = &mailbox;
    cpu::CpuProgram prepared;
    ASSERT_OK(prepared.prepare(std::move(program), std::move(binding)));
    cpu::CpuRun run;
    const uint64_t cursor = 0;
    run.start(prepared, {&cursor, 1});
    EXPECT_EQ(run.advance(1 << 20), cpu::Step::kBlocked);
    run.cancel(Code::kCancelled);
    (void)run.advance(1 << 20);
    EXPECT_EQ(agent.sent(), begun);
    while (agent.finishOne()) {
    }
    EXPECT_EQ(run.advance(1 << 20), cpu::Step::kEnded);
    EXPECT_EQ(run.code(), begun == kEntries ? Code::kOk : Code::kCancelled);
    const uint64_t number = loadWord(there.data() + slab::kInboxOffset, Width::k64);
    EXPECT_EQ(number, run.code() == Code::kOk ? 1u : 0u) << begun << " of its entries had begun";
  }
}

TEST_P(NotificationTest, WhatWasSentBeforeItsCancelIsTaken) {
  EXPECT_OK(send(pair_.toB, 0, {}).wait(kSoon));  // the link is up
  ASSERT_OK(waitNotification(pair_.toA, kSoon).status());
  constexpr uint32_t kMessages = 15;  // as many as there are slots: none of them waits
  // An agent at the other side answers nothing meanwhile, but what was sent is on its way.
  StandingCallback stands(pair_.toA.core()->progress());
  std::vector<Transfer> sent;
  for (uint32_t i = 0; i < kMessages; ++i) sent.push_back(send(pair_.toB, i, bytesOf("x")));
  for (uint32_t i = 0; i < kMessages; i += 3) sent[i].cancel();
  // The cancellation is looked at by turns of this side.
  for (int i = 0; i < 1000; ++i) pair_.toB.core()->progress().turn();
  for (uint32_t i = 0; i < kMessages; ++i)
    sent.push_back(send(pair_.toB, kMessages + i, bytesOf("y")));
  stands.goOn();
  for (uint32_t i = 0; i < sent.size(); ++i) {
    const Code end = sent[i].wait(kSoon).code();
    const bool wasCancelled = i < kMessages && i % 3 == 0;
    EXPECT_TRUE(end == Code::kOk || (end == Code::kCancelled && wasCancelled)) << i;
    if (end != Code::kOk) continue;
    const auto taken = waitNotification(pair_.toA, kSoon);
    ASSERT_OK(taken.status());
    EXPECT_EQ(taken->tag, i);
  }
  EXPECT_EQ(pollNotification(pair_.toA).status().code(), Code::kTryAgain);
}

// Given up at any moment, a notification either ended well and was taken, or failed and was not;
// and the ones behind it come in their order.
TEST_P(NotificationTest, CancelsAtAnyMoment) {
  TestMemory from(*pair_.a, 300'000, GetParam().shared, Access::kRemoteReadWrite, 1);
  TestMemory to(*pair_.b, 300'000, GetParam().shared, Access::kRemoteReadWrite, 2);
  const RemoteRegion remote = MUST(pair_.toB.importRegion(to.region().share()));
  constexpr uint32_t kRounds = 400;
  std::vector<Transfer> sent(kRounds);
  std::thread poster([&] {
    const std::vector<std::byte> message = bytesOf("there");
    for (uint32_t i = 0; i < kRounds; ++i) {
      const Block block{&from.region(), 0, &remote, 0, 1 + i % 7 * 40'000};
      PostOptions options;
      options.notify.message = message;
      options.notify.tag = i;
      sent[i] =
          i % 2 == 0 ? MUST(put(pair_.toB, {&block, 1}, options)) : send(pair_.toB, i, message);
      if (i % 3 != 2) sent[i].cancel();
    }
    // Behind all of them, and never cancelled.
    EXPECT_OK(send(pair_.toB, kRounds, message).wait(kSoon));
  });
  std::vector<bool> taken(kRounds);
  for (uint32_t last = 0;;) {
    const auto next = waitNotification(pair_.toA, kSoon);
    if (!next.isOk()) ADD_FAILURE() << next.status().toString();
    if (!next.isOk() || next->tag == kRounds) break;
    EXPECT_GE(next->tag, last) << "out of order";
    last = next->tag + 1;
    if (next->tag < kRounds) taken[next->tag] = true;
  }
  poster.join();
  for (uint32_t i = 0; i < kRounds; ++i) {
    const Code end = sent[i].wait(kSoon).code();
    EXPECT_TRUE(end == Code::kOk || (end == Code::kCancelled && i % 3 != 2)) << i;
    EXPECT_EQ(taken[i], end == Code::kOk) << i;
  }
  EXPECT_EQ(pollNotification(pair_.toA).status().code(), Code::kTryAgain);
  std::memcpy(to.shadow(), to.data(), to.bytes());  // undefined after a cancel
}

// The receiver keeps 1024 at most; what is beyond waits with the senders, and comes when there is
// room, also if only the descriptor is looked at.
TEST_P(NotificationTest, AFullInboxHoldsSendersBackAndDrains) {
  const auto fd = notificationFd(pair_.toA);
  ASSERT_OK(fd.status());
  std::vector<Transfer> sent;
  constexpr uint32_t kCount = 1024 + 16 + 50;
  // No more than may wait at the sender, until the receiver has taken most of them.
  for (uint32_t i = 0; i < 1024; ++i) sent.push_back(send(pair_.toB, i, bytesOf("abc")));
  EXPECT_OK(sent[1000].wait(60s));
  for (uint32_t i = 1024; i < kCount; ++i) sent.push_back(send(pair_.toB, i, bytesOf("abc")));
  EXPECT_EQ(sent.back().wait(20ms).code(), Code::kTimeout);
  for (uint32_t i = 0; i < kCount; ++i) {
    pollfd wanted{*fd, POLLIN, 0};
    if (i % 100 == 0) {
      ASSERT_EQ(poll(&wanted, 1, 20'000), 1);
    }
    const auto taken = waitNotification(pair_.toA, kSoon);
    ASSERT_OK(taken.status());
    ASSERT_EQ(taken->tag, i);
  }
  for (const Transfer& transfer : sent) EXPECT_OK(transfer.wait(kSoon));
}

// No heartbeat takes anything out of a slab while a test lasts.
Config withoutHeartbeats() {
  Config config = configFor(kMapped);
  config.heartbeat = std::chrono::minutes(10);
  config.peerTimeout = std::chrono::minutes(60);
  return config;
}

Transfer sendEmpty(const Peer& peer, uint32_t tag) {
  return MUST(notify(peer, {.message = std::span<const std::byte>(), .tag = tag}));
}

// One thread polls once and takes two out of the slab: the other one is told of, though no turn
// comes.
TEST(NotificationReadiness, APollTellsOfWhatItLeaves) {
  const ContextPair pair(withoutHeartbeats());
  pollfd wanted{MUST(notificationFd(pair.toA)), POLLIN, 0};
  const StandingCallback stands(pair.toA.core()->progress());
  for (const uint32_t tag : {1u, 2u}) EXPECT_OK(sendEmpty(pair.toB, tag).wait(kSoon));
  EXPECT_EQ(poll(&wanted, 1, 0), 0);
  EXPECT_EQ(MUST(pollNotification(pair.toA)).tag, 1u);
  EXPECT_EQ(poll(&wanted, 1, 0), 1);
  EXPECT_EQ(MUST(pollNotification(pair.toA)).tag, 2u);
  EXPECT_EQ(poll(&wanted, 1, 0), 0);
}

// A thread that sleeps in a wait for the next notification, where no turn comes. Returns its tag,
// or 0.
uint32_t wakesWaiter(const ContextPair& pair, uint32_t sent, void (*bringIn)(const Peer&)) {
  Progress& engine = pair.toA.core()->progress();
  StandingCallback stands(engine);
  std::atomic<int> thread{0};
  std::atomic<uint32_t> tag{0};
  std::thread waiter([&] {
    thread.store(gettid());
    tag.store(MUST(waitNotification(pair.toA, std::chrono::minutes(10))).tag);
  });
  EXPECT_TRUE(soon([&] { return !engine.describeWaits().empty() && threadSleeps(thread.load()); }));
  for (uint32_t i = 1; i <= sent; ++i) EXPECT_OK(sendEmpty(pair.toB, i).wait(kSoon));
  bringIn(pair.toA);
  (void)soon([&] { return tag.load() != 0; });
  const uint32_t seen = tag.load();
  stands.goOn();
  waiter.join();
  return seen;
}

TEST(NotificationReadiness, APollWakesThoseThatWaitForWhatItLeaves) {
  const ContextPair pair(withoutHeartbeats());
  const auto takeOne = [](const Peer& peer) { EXPECT_EQ(MUST(pollNotification(peer)).tag, 1u); };
  EXPECT_EQ(wakesWaiter(pair, 2, takeOne), 2u);
}

TEST(NotificationReadiness, WhoeverAsksForTheDescriptorWakesThoseThatWait) {
  const ContextPair pair(withoutHeartbeats());
  const auto ask = [](const Peer& peer) { EXPECT_OK(notificationFd(peer).status()); };
  EXPECT_EQ(wakesWaiter(pair, 1, ask), 1u);
}

// What found no room lies in the slab. A thread that takes one message each time that the
// descriptor says so, and never asks in vain, gets all of it.
TEST(NotificationReadiness, TheDescriptorTellsOfWhatFoundNoRoom) {
  const ContextPair pair(withoutHeartbeats());
  Progress& engine = pair.toA.core()->progress();
  std::atomic<int> thread{0};
  ASSERT_OK(engine.call([&] { thread.store(gettid()); }));
  pollfd wanted{MUST(notificationFd(pair.toA)), POLLIN, 0};
  constexpr uint32_t kInSlab = 8;
  constexpr uint32_t kCount = NotificationInbox::kMaxWaiting + kInSlab;
  for (uint32_t i = 0; i < kCount; ++i) ASSERT_OK(sendEmpty(pair.toB, i).wait(kSoon));
  EXPECT_TRUE(soon([&] { return threadSleeps(thread.load()); }));
  for (uint32_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(poll(&wanted, 1, 20'000), 1) << i;
    EXPECT_EQ(MUST(pollNotification(pair.toA)).tag, i);
  }
  EXPECT_EQ(pollNotification(pair.toA).status().code(), Code::kTryAgain);
}

// The descriptor becomes readable when the peer falls silent, and stops being readable once the
// peer is heard again.
TEST(NotificationReadiness, ASilenceThatIsOverIsNotTold) {
  Config hearsBadly = configFor(kTcp);
  hearsBadly.heartbeat = 100ms;
  hearsBadly.peerTimeout = 1s;
  const ContextPair pair(hearsBadly, configFor(kTcp));
  pollfd wanted{MUST(notificationFd(pair.toB)), POLLIN, 0};
  {
    const StandingCallback stands(pair.toA.core()->progress());
    EXPECT_EQ(poll(&wanted, 1, 60'000), 1);
    EXPECT_EQ(pollNotification(pair.toB).status().code(), Code::kPeerSilent);
  }
  EXPECT_TRUE(soon([&] { return pair.toB.status().isOk(); }));
  EXPECT_EQ(pollNotification(pair.toB).status().code(), Code::kTryAgain);
  EXPECT_EQ(poll(&wanted, 1, 0), 0);
  EXPECT_OK(sendEmpty(pair.toA, 5).wait(kSoon));
  EXPECT_EQ(poll(&wanted, 1, 60'000), 1);
  EXPECT_EQ(MUST(waitNotification(pair.toB, kSoon)).tag, 5u);
}

}  // namespace
}  // namespace peerlane
