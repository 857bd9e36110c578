// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/readiness_set.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "peerlane/os/socket.h"
#include "tests/core/expect_ok.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

bool isReadable(int fd, std::chrono::milliseconds longest = 0ms) {
  pollfd one{fd, POLLIN, 0};
  return ::poll(&one, 1, static_cast<int>(longest.count())) == 1;
}

auto soon() {
  return ReadinessSet::Clock::now() + 20s;
}

struct Ends {
  Ends() {
    auto pair = MUST(socketPair());
    near = std::move(pair.first);
    far = std::move(pair.second);
  }
  void write() const { ASSERT_EQ(::write(far.get(), "x", 1), 1); }
  void drain() const {
    char byte = 0;
    ASSERT_EQ(::read(near.get(), &byte, 1), 1);
  }
  Fd near;
  Fd far;
};

class ReadinessSetTest : public testing::Test {
 protected:
  const std::unique_ptr<ReadinessSet> set_ = MUST(ReadinessSet::create());
};

TEST_F(ReadinessSetTest, TheGateTellsOfDataWhileNobodyAttends) {
  const Ends ends;
  EXPECT_TRUE(set_->isEmpty());
  const auto member = MUST(set_->add(ends.near.get()));
  EXPECT_FALSE(set_->isEmpty());
  EXPECT_FALSE(isReadable(set_->gate()));
  ends.write();
  EXPECT_TRUE(isReadable(set_->gate()));
  ends.drain();
  EXPECT_FALSE(isReadable(set_->gate()));
  set_->remove(*member);
  EXPECT_TRUE(set_->isEmpty());
  ends.write();
  EXPECT_FALSE(isReadable(set_->gate()));
}

// What has come meanwhile, and was not read, is not forgotten.
TEST_F(ReadinessSetTest, AThreadThatAttendsKeepsItFromOthers) {
  const Ends ends;
  const auto member = MUST(set_->add(ends.near.get()));
  {
    const ReadinessSet::Attendance first(*set_);
    {
      const ReadinessSet::Attendance second(*set_);
      ends.write();
    }
    EXPECT_TRUE(set_->isAttended());
    EXPECT_FALSE(isReadable(set_->gate()));
    EXPECT_TRUE(set_->block(soon()));
  }
  EXPECT_FALSE(set_->isAttended());
  EXPECT_TRUE(isReadable(set_->gate()));
}

TEST_F(ReadinessSetTest, ABlockEndsForDataAnInterruptOrInTime) {
  const Ends ends;
  const auto member = MUST(set_->add(ends.near.get()));
  const ReadinessSet::Attendance attendance(*set_);
  EXPECT_FALSE(set_->block(ReadinessSet::Clock::now())) << "in time";
  set_->interrupt();
  EXPECT_FALSE(set_->block(soon())) << "an interrupt from before";
  std::thread other([&] { set_->interrupt(); });
  EXPECT_FALSE(set_->block(soon()));
  other.join();
  std::thread writer([&] { ends.write(); });
  EXPECT_TRUE(set_->block(soon()));
  writer.join();
}

TEST_F(ReadinessSetTest, FewMembersAreAllToBeTried) {
  const Ends ends;
  const auto member = MUST(set_->add(ends.near.get()));
  member->mayRead = member->mayWrite = false;
  set_->look();
  EXPECT_TRUE(member->mayRead);
  EXPECT_TRUE(member->mayWrite);
}

// A member that is not ready often is found by one of the next looks, and at once while it is busy.
TEST_F(ReadinessSetTest, OthersAreAskedForNowAndThen) {
  const Ends often;
  const Ends seldom;
  const auto first = MUST(set_->add(often.near.get()));
  const auto second = MUST(set_->add(seldom.near.get(), /*isOften=*/false));
  second->mayRead = second->mayWrite = false;
  for (uint32_t i = 0; i < ReadinessSet::kLooksPerAsk; ++i) set_->look();
  EXPECT_FALSE(second->mayRead) << "it is not ready";
  seldom.write();
  uint32_t looks = 0;
  for (; looks < ReadinessSet::kLooksPerAsk && !second->mayRead; ++looks) {
    first->mayRead = false;
    EXPECT_TRUE(isReadable(set_->gate()));
    set_->look();
    EXPECT_TRUE(first->mayRead);
  }
  EXPECT_TRUE(second->mayRead);
  second->mayRead = false;
  set_->look();
  EXPECT_TRUE(second->mayRead) << "it was ready at the last look";
}

TEST_F(ReadinessSetTest, OfManyOnlyThoseThatAreReady) {
  std::vector<Ends> ends(20);
  std::vector<std::shared_ptr<ReadinessSet::Member>> members;
  for (const Ends& each : ends) {
    members.push_back(MUST(set_->add(each.near.get())));
    members.back()->mayRead = members.back()->mayWrite = false;
  }
  ends[7].write();
  set_->wantRoom(*members[9], true);
  set_->look();
  for (size_t i = 0; i < members.size(); ++i) {
    EXPECT_EQ(members[i]->mayRead, i == 7) << i;
    EXPECT_EQ(members[i]->mayWrite, i == 9) << i;
  }
  ends[7].drain();
  EXPECT_TRUE(isReadable(set_->gate())) << "there is room";
  set_->wantRoom(*members[9], false);
  EXPECT_FALSE(isReadable(set_->gate()));
}

// Somebody polls soon after the last one that attended has left, and once.
TEST_F(ReadinessSetTest, WhatIsOwedOpensTheGateSoon) {
  const Ends ends;
  const auto member = MUST(set_->add(ends.near.get()));
  { const ReadinessSet::Attendance attendance(*set_); }
  EXPECT_FALSE(isReadable(set_->gate(), 5ms)) << "nothing is owed";
  {
    const ReadinessSet::Attendance attendance(*set_);
    set_->owe();
    EXPECT_TRUE(set_->isOwed());
  }
  EXPECT_TRUE(isReadable(set_->gate(), 20000ms));
  set_->look();
  EXPECT_FALSE(isReadable(set_->gate())) << "the turn that looked pays";
  set_->paid();
  EXPECT_FALSE(set_->isOwed());
}

// One that attends and sleeps for the others hears of it.
TEST_F(ReadinessSetTest, WhatIsOwedIsNotForgottenAmongSeveralThatAttend) {
  const Ends ends;
  const auto member = MUST(set_->add(ends.near.get()));
  const ReadinessSet::Attendance sleeper(*set_);
  EXPECT_FALSE(set_->block(ReadinessSet::Clock::now() + 5ms)) << "nothing is owed";
  {
    const ReadinessSet::Attendance other(*set_);
    set_->owe();
  }
  EXPECT_TRUE(set_->block(soon())) << "the other has left";
  set_->look();
  EXPECT_FALSE(set_->block(ReadinessSet::Clock::now()));
  { const ReadinessSet::Attendance resting(*set_); }
  EXPECT_TRUE(set_->block(soon())) << "the other leaves it";
  set_->paid();
}

// All that attend rest when it comes up.
TEST_F(ReadinessSetTest, WhatIsOwedWhileAllRestWakesThem) {
  const Ends ends;
  const auto member = MUST(set_->add(ends.near.get()));
  ReadinessSet::Attendance sleeper(*set_);
  sleeper.rest();
  std::thread other([&] { set_->owe(); });
  EXPECT_TRUE(set_->block(soon()));
  other.join();
  sleeper.goOn();
  set_->look();
  EXPECT_FALSE(set_->block(ReadinessSet::Clock::now())) << "it takes a turn, and pays";
  set_->paid();
}

TEST_F(ReadinessSetTest, AnEmptySetIsNeverReady) {
  const Ends ends;
  const auto member = MUST(set_->add(ends.near.get()));
  set_->owe();
  ASSERT_TRUE(isReadable(set_->gate(), 20000ms));
  set_->remove(*member);
  EXPECT_FALSE(isReadable(set_->gate()));
  { const ReadinessSet::Attendance attendance(*set_); }
  EXPECT_FALSE(isReadable(set_->gate(), 5ms)) << "nobody could be paid";
  set_->paid();
}

TEST_F(ReadinessSetTest, WhatIsOwedWhileNobodyAttendsOpensTheGateToo) {
  const Ends ends;
  const auto member = MUST(set_->add(ends.near.get()));
  set_->owe();
  EXPECT_TRUE(isReadable(set_->gate(), 20000ms));
  set_->paid();
}

}  // namespace
}  // namespace peerlane
