// SPDX-License-Identifier: Apache-2.0
//
// What becomes of works when the pairs of a link are made anew.
#include "peerlane/transport/verbs/request/replay.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

namespace peerlane {
namespace {

using Fate = Replay::Fate;

// Takes entries and does nothing with them.
class Holder final : public Agent {
 public:
  Served serve(AgentWork& work) override {
    works.push_back(&work);
    return Served::kSent;
  }
  std::vector<AgentWork*> works;
};

class ReplayTest : public testing::Test {
 protected:
  AgentWork& enter(Verb verb, Mailbox& mailbox) {
    MailboxEntry* const entry = mailbox.claim();
    *entry = {};
    entry->verb = verb;
    mailbox.ring();
    (void)mailbox.serve();
    return *holder_.works.back();
  }
  AgentWork& enter(Verb verb) { return enter(verb, mailbox_); }
  // A request for the work is under way.
  void post(AgentWork& work, uint64_t news = 0, bool isQuiet = false) {
    (void)chain_.add(IBV_WR_RDMA_WRITE);
    RequestLedger::Request& request = ledger_.note(chain_, &work);
    request.news = news;
    request.isQuiet = isQuiet;
    chain_.clear();
  }
  AgentWork& posted(Verb verb, uint64_t news = 0, bool isQuiet = false) {
    AgentWork& work = enter(verb);
    post(work, news, isQuiet);
    WorkState(work).setWhole();
    return work;
  }
  // In the order in which they come out.
  std::vector<Fate> fates(std::optional<uint64_t> taken, bool noneExecuted = false) {
    Replay replay(taken, noneExecuted);
    replay.addFirst(ledger_);
    for (AgentWork* work : holder_.works) replay.add(*work);
    judged_ = replay.judge();
    std::vector<Fate> fates;
    for (const Replay::Judged& each : judged_) fates.push_back(each.fate);
    return fates;
  }
  Fate fateOf(const AgentWork& work) const {
    for (const Replay::Judged& each : judged_)
      if (each.work == &work) return each.fate;
    ADD_FAILURE() << "it was not judged";
    return Fate::kLost;
  }

  Holder holder_;
  Mailbox mailbox_{holder_}, other_{holder_};
  RequestLedger ledger_{64};
  RequestChain chain_;
  std::vector<Replay::Judged> judged_;
};

TEST_F(ReplayTest, APutWhoseWordWasTakenIsDone) {
  posted(Verb::kPut);
  posted(Verb::kStore, 1);
  EXPECT_EQ(fates(1), (std::vector{Fate::kDone, Fate::kDone}));
}

TEST_F(ReplayTest, APutWhoseWordWasNotTakenGoesAgainWithIt) {
  posted(Verb::kPut);
  posted(Verb::kStore, 1);
  EXPECT_EQ(fates(0), (std::vector{Fate::kAgain, Fate::kAgain}));
}

TEST_F(ReplayTest, WhatIsBeforeAWordThatWasTakenIsDoneAndWhatIsAfterItGoesAgain) {
  posted(Verb::kPut);
  posted(Verb::kStore, 1);
  posted(Verb::kPut);
  posted(Verb::kStore, 2);
  EXPECT_EQ(fates(1), (std::vector{Fate::kDone, Fate::kDone, Fate::kAgain, Fate::kAgain}));
}

TEST_F(ReplayTest, AWordWithoutNewsIsInDoubtAndTakesItsMailboxAlong) {
  posted(Verb::kPut);
  posted(Verb::kStore, 0, /*isQuiet=*/true);
  posted(Verb::kPut);
  enter(Verb::kPut);
  EXPECT_EQ(fates(0), std::vector(4, Fate::kLost));
}

TEST_F(ReplayTest, AWordWithoutNewsIsDoneIfLaterNewsWasTaken) {
  posted(Verb::kPut);
  posted(Verb::kStore, 0, /*isQuiet=*/true);
  AgentWork& later = enter(Verb::kStore, other_);
  post(later, 1);
  WorkState(later).setWhole();
  (void)fates(1);
  for (const AgentWork* work : holder_.works) EXPECT_EQ(fateOf(*work), Fate::kDone);
}

TEST_F(ReplayTest, NothingAfterNewsThatWasNotTakenIsInDoubt) {
  AgentWork& news = enter(Verb::kStore, other_);
  post(news, 1);
  WorkState(news).setWhole();
  posted(Verb::kPut);
  posted(Verb::kStore, 0, /*isQuiet=*/true);
  posted(Verb::kAdd64, 0, /*isQuiet=*/true);
  (void)fates(0);
  for (const AgentWork* work : holder_.works) EXPECT_EQ(fateOf(*work), Fate::kAgain);
}

TEST_F(ReplayTest, DoubtDoesNotReachOtherMailboxes) {
  posted(Verb::kStore, 0, /*isQuiet=*/true);
  AgentWork& elsewhere = enter(Verb::kPut, other_);
  post(elsewhere);
  WorkState(elsewhere).setWhole();
  (void)fates(0);
  EXPECT_EQ(fateOf(*holder_.works[0]), Fate::kLost);
  EXPECT_EQ(fateOf(elsewhere), Fate::kAgain);
}

TEST_F(ReplayTest, WithoutThePeersCountEveryWordIsInDoubt) {
  posted(Verb::kPut);
  posted(Verb::kStore, 1);
  EXPECT_EQ(fates({}), (std::vector{Fate::kLost, Fate::kLost}));
}

TEST_F(ReplayTest, NothingIsInDoubtWhenNothingWasExecuted) {
  posted(Verb::kPut);
  posted(Verb::kStore, 0, /*isQuiet=*/true);
  posted(Verb::kAdd64, 0, /*isQuiet=*/true);
  EXPECT_EQ(fates({}, /*noneExecuted=*/true), std::vector(3, Fate::kAgain));
}

TEST_F(ReplayTest, AGetIsDoneOnlyIfWhatWaitedForItWasExecuted) {
  posted(Verb::kGet);
  EXPECT_EQ(fates(9), std::vector{Fate::kAgain});
  posted(Verb::kStore, 1);
  EXPECT_EQ(fates(0), (std::vector{Fate::kAgain, Fate::kAgain}));
  EXPECT_EQ(fates(1), (std::vector{Fate::kDone, Fate::kDone}));
}

TEST_F(ReplayTest, AnAdditionThatMayHaveBeenDoneIsNeverPostedAgain) {
  AgentWork& work = enter(Verb::kAdd64);
  post(work);     // the addition
  post(work, 1);  // and its wake
  WorkState(work).setWhole();
  EXPECT_EQ(fates(0), std::vector{Fate::kLost});
  EXPECT_EQ(fates(1), std::vector{Fate::kDone});
}

TEST_F(ReplayTest, AWorkThatFailedKeepsItsCodeAndOthersGoAgain) {
  posted(Verb::kPut).code.store(Code::kPermissionDenied);
  posted(Verb::kPut);
  EXPECT_EQ(fates(0), (std::vector{Fate::kDone, Fate::kAgain}));
  EXPECT_EQ(holder_.works[0]->code.load(), Code::kPermissionDenied);
}

TEST_F(ReplayTest, APutOfWhichMoreWasToComeGoesAgain) {
  AgentWork& work = enter(Verb::kPut);
  post(work);
  AgentWork& elsewhere = enter(Verb::kStore, other_);
  post(elsewhere, 1);
  WorkState(elsewhere).setWhole();
  (void)fates(1);
  EXPECT_EQ(fateOf(work), Fate::kAgain);
}

TEST_F(ReplayTest, AMailIsDoneIfItWasTaken) {
  AgentWork& work = enter(Verb::kStore);
  WorkState(work).setMailed();
  WorkState(work).setWhole();
  work.offset = 3;
  EXPECT_EQ(fates(3), std::vector{Fate::kDone});
  EXPECT_EQ(fates(2), std::vector{Fate::kAgain});
  EXPECT_EQ(fates({}), std::vector{Fate::kLost});
}

TEST_F(ReplayTest, ASharedTransferGoesAgainWhole) {
  AgentWork& work = posted(Verb::kPut);
  WorkState(work).setStriped();
  AgentWork& elsewhere = enter(Verb::kStore, other_);
  post(elsewhere, 1);
  WorkState(elsewhere).setWhole();
  (void)fates(1);
  EXPECT_EQ(fateOf(work), Fate::kAgain);
}

TEST_F(ReplayTest, WorksComeInTheOrderOfTheirMailbox) {
  for (int i = 0; i < 5; ++i) enter(Verb::kPut);
  Replay replay(0, false);
  for (const int i : {3, 0, 4, 2, 1}) replay.add(*holder_.works[static_cast<size_t>(i)]);
  const std::vector<Replay::Judged> judged = replay.judge();
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(judged[i].work, holder_.works[i]);
}

}  // namespace
}  // namespace peerlane
