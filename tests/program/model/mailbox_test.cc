// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/model/mailbox.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <bit>
#include <thread>

#include "tests/core/rounds.h"
#include "tests/program/model/scripted_agent.h"

namespace peerlane {
namespace {

using Answer = ScriptedAgent::Answer;

class MailboxTest : public testing::Test {
 protected:
  MailboxTest() {
    remote_.linkKey = std::bit_cast<uint64_t>(there_.data());
    remote_.grant.bytes = sizeof(there_);
  }
  void postStore(uint64_t index, uint64_t value) {
    MailboxEntry* entry = mailbox_.claim();
    ASSERT_NE(entry, nullptr);
    entry->verb = Verb::kStore;
    entry->remote = &remote_;
    entry->remoteOffset = index * 8;
    entry->operand = value;
    mailbox_.ring();
  }

  alignas(64) std::array<uint64_t, 64> there_{};
  RemoteMemory remote_;
  ScriptedAgent agent_;
  Mailbox mailbox_{agent_};
};

TEST_F(MailboxTest, IsIdleAndHasNothingAtFirst) {
  EXPECT_TRUE(mailbox_.idle());
  EXPECT_FALSE(mailbox_.pending());
  EXPECT_FALSE(mailbox_.serve());
  EXPECT_EQ(agent_.calls(), 0u);
}

TEST_F(MailboxTest, AnEntryIsPerformedWhenServed) {
  postStore(3, 77);
  EXPECT_TRUE(mailbox_.pending());
  EXPECT_FALSE(mailbox_.idle());
  EXPECT_EQ(there_[3], 0u);
  EXPECT_TRUE(mailbox_.serve());
  EXPECT_TRUE(mailbox_.idle());
  EXPECT_FALSE(mailbox_.pending());
  EXPECT_EQ(there_[3], 77u);
  EXPECT_EQ(mailbox_.code(), Code::kOk);
}

// While it serves, it tries to serve once more.
class TwiceServingAgent final : public Agent {
 public:
  Served serve(AgentWork& work) override {
    wasFree = work.mailbox->serveHere();
    return Served::kAgain;
  }
  bool wasFree = true;
};

TEST(MailboxServing, WhoFindsAnotherServingLearnsIt) {
  TwiceServingAgent agent;
  Mailbox mailbox(agent);
  mailbox.claim()->verb = Verb::kFlush;
  mailbox.ring();
  EXPECT_TRUE(mailbox.serveHere()) << "also where the agent refuses";
  EXPECT_FALSE(agent.wasFree);
}

TEST_F(MailboxTest, AClaimedEntryIsInvisibleBeforeTheRing) {
  MailboxEntry* entry = mailbox_.claim();
  ASSERT_NE(entry, nullptr);
  entry->verb = Verb::kFlush;
  EXPECT_FALSE(mailbox_.serve());
  EXPECT_EQ(agent_.calls(), 0u);
  mailbox_.ring();
  EXPECT_TRUE(mailbox_.serve());
  EXPECT_TRUE(mailbox_.idle());
}

TEST_F(MailboxTest, HoldsEightEntriesAndIsFreshEachTime) {
  for (uint64_t i = 0; i < Mailbox::kSlots; ++i) postStore(i, i + 1);
  EXPECT_EQ(mailbox_.claim(), nullptr);
  mailbox_.serve();
  for (uint64_t i = 0; i < Mailbox::kSlots; ++i) EXPECT_EQ(there_[i], i + 1);
  MailboxEntry* entry = mailbox_.claim();
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->verb, Verb::kFlush) << "nothing of the earlier use is left";
  EXPECT_EQ(entry->remote, nullptr);
}

TEST_F(MailboxTest, AgainLeavesTheEntryAndThoseBehindIt) {
  agent_.script({Answer::kAgain, Answer::kAgain});
  postStore(0, 1);
  postStore(1, 2);
  EXPECT_FALSE(mailbox_.serve());
  EXPECT_EQ(there_[1], 0u) << "entries take effect in order";
  EXPECT_FALSE(mailbox_.serve());
  EXPECT_TRUE(mailbox_.serve());
  EXPECT_TRUE(mailbox_.idle());
  EXPECT_EQ(there_[0], 1u);
  EXPECT_EQ(there_[1], 2u);
}

TEST_F(MailboxTest, MoreIsServedOnAtOnce) {
  agent_.script({Answer::kMore, Answer::kMore, Answer::kDone});
  postStore(0, 1);
  EXPECT_TRUE(mailbox_.serve());
  EXPECT_EQ(agent_.calls(), 3u);
  EXPECT_TRUE(mailbox_.idle());
}

TEST_F(MailboxTest, SentEntriesEndByFinishInAnyPattern) {
  agent_.sendAll(true);
  for (uint64_t i = 0; i < 4; ++i) postStore(i, i + 10);
  EXPECT_TRUE(mailbox_.serve());
  EXPECT_EQ(agent_.sent(), 4u);
  EXPECT_FALSE(mailbox_.idle());
  EXPECT_FALSE(mailbox_.serve()) << "all are in the agent's hands";
  ASSERT_TRUE(agent_.finishOne());
  EXPECT_FALSE(mailbox_.idle());
  EXPECT_EQ(there_[0], 10u);
  while (agent_.finishOne()) {
  }
  EXPECT_TRUE(mailbox_.idle());
  EXPECT_EQ(there_[3], 13u);
}

TEST_F(MailboxTest, CompletionWaitsForTheOldest) {
  // The second is done at once, the first only later: the word counts entries in order.
  agent_.script({Answer::kSent, Answer::kDone});
  postStore(0, 1);
  postStore(1, 2);
  EXPECT_TRUE(mailbox_.serve());
  EXPECT_FALSE(mailbox_.idle());
  ASSERT_TRUE(agent_.finishOne());
  EXPECT_TRUE(mailbox_.idle()) << "finish publishes what was waiting behind, too";
}

TEST_F(MailboxTest, KeepsTheFirstFailureUntilReset) {
  agent_.failWith(Code::kPermissionDenied);
  postStore(0, 1);
  mailbox_.serve();
  agent_.failWith(Code::kTimeout);
  postStore(1, 1);
  mailbox_.serve();
  EXPECT_TRUE(mailbox_.idle());
  EXPECT_EQ(mailbox_.code(), Code::kPermissionDenied);
  mailbox_.resetCode();
  EXPECT_EQ(mailbox_.code(), Code::kOk);
  agent_.failWith(Code::kOk);
  postStore(2, 5);
  mailbox_.serve();
  EXPECT_EQ(mailbox_.code(), Code::kOk);
  EXPECT_EQ(there_[2], 5u);
}

TEST_F(MailboxTest, FinishCarriesACode) {
  agent_.sendAll(true);
  postStore(0, 1);
  mailbox_.serve();
  ASSERT_TRUE(agent_.finishOne(Code::kPeerLost));
  EXPECT_TRUE(mailbox_.idle());
  EXPECT_EQ(mailbox_.code(), Code::kPeerLost);
  EXPECT_EQ(there_[0], 0u);
}

TEST_F(MailboxTest, AbortEndsWhatWasNotBegunAndNothingElse) {
  agent_.script({Answer::kSent, Answer::kAgain});
  postStore(0, 1);
  postStore(1, 2);
  mailbox_.serve();
  mailbox_.abort(Code::kCancelled);
  mailbox_.serve();
  EXPECT_FALSE(mailbox_.idle()) << "the first is in the agent's hands: its memory is in use";
  EXPECT_EQ(agent_.calls(), 2u);
  ASSERT_TRUE(agent_.finishOne());
  EXPECT_TRUE(mailbox_.idle());
  EXPECT_EQ(mailbox_.code(), Code::kCancelled);
  EXPECT_EQ(there_[0], 1u);
  EXPECT_EQ(there_[1], 0u);
  mailbox_.clearAbort();
  mailbox_.resetCode();
  postStore(2, 3);
  mailbox_.serve();
  EXPECT_EQ(there_[2], 3u);
}

// A slice that answered kMore is not performed further after an abort.
TEST_F(MailboxTest, AbortIsSeenBetweenSlices) {
  agent_.script({Answer::kMore, Answer::kAgain});
  postStore(0, 1);
  EXPECT_TRUE(mailbox_.serve());
  mailbox_.abort(Code::kCancelled);
  mailbox_.serve();
  EXPECT_TRUE(mailbox_.idle());
  EXPECT_EQ(there_[0], 0u);
}

// One poster, several servers, and a wire thread that finishes: every entry is performed once and
// in order, and nobody waits for ever.
TEST_F(MailboxTest, StressWithSeveralServersAndAFinisher) {
  for (const bool sent : {false, true}) {
    agent_.sendAll(sent);
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([&] {
        while (!stop.load())
          if (!mailbox_.serve()) std::this_thread::yield();
      });
    threads.emplace_back([&] {
      while (!stop.load())
        if (!agent_.finishOne()) std::this_thread::yield();
    });
    Rounds rounds(20000);
    there_[0] = 0;
    while (const uint64_t i = rounds.next()) {
      MailboxEntry* entry = nullptr;
      while ((entry = mailbox_.claim()) == nullptr) std::this_thread::yield();
      entry->verb = Verb::kAdd64;
      entry->remote = &remote_;
      entry->operand = i;
      mailbox_.ring();
    }
    while (!mailbox_.idle()) std::this_thread::yield();
    EXPECT_EQ(there_[0], rounds.done() * (rounds.done() + 1) / 2);
    EXPECT_EQ(mailbox_.code(), Code::kOk);
    stop.store(true);
    for (std::thread& thread : threads) thread.join();
  }
}

// The poster sleeps on the completion alone, as a program does; nobody but the finisher serves.
TEST_F(MailboxTest, FinishAloneBringsEveryEntryToItsEnd) {
  agent_.sendAll(true);
  std::atomic<bool> stop{false};
  std::thread wire([&] {
    while (!stop.load())
      if (!agent_.finishOne()) std::this_thread::yield();
  });
  Rounds rounds(20000);
  while (const uint64_t i = rounds.next()) {
    postStore(i % 64, i);
    mailbox_.serve();  // hands it out, once
    while (!mailbox_.idle()) std::this_thread::yield();
  }
  stop.store(true);
  wire.join();
}

}  // namespace
}  // namespace peerlane
