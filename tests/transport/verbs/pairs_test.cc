// SPDX-License-Identifier: Apache-2.0
//
// Links of several pairs, and links whose pairs fail and are made anew: what is large is shared,
// what was under way is posted again where that cannot harm, and ends as lost where it could.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "tests/core/expect_ok.h"
#include "tests/core/quiet_log.h"
#include "tests/fake/patterned_bytes.h"
#include "tests/transport/verbs/verbs_joint.h"

namespace peerlane {
namespace {

constexpr uint64_t kLarge = 16 << 20;
constexpr uint64_t kSmall = 64 * 1024;

uint64_t wordAt(const VerbsSide::Memory& memory, uint64_t offset) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(memory.bytes.data() + offset))
      .load(std::memory_order_acquire);
}

// How long a pair tries before it fails: kHasty for tests of failures; kPatient where no pair may
// fail, however busy the machine is.
struct Patience {
  uint8_t timeout, tries;
};
constexpr Patience kHasty{14, 2};    // 67 ms each
constexpr Patience kPatient{20, 6};  // 4.3 s each

struct Stage {
  Stage(const JointOptions& options, Patience patience, const HcaSettings& settings = {})
      : a(settings), b(settings) {
    for (VerbsSide* side : {&a, &b}) {
      side->config.ibTimeout = patience.timeout;
      side->config.ibRetry = patience.tries;
    }
    joint.emplace(a, b, options);
  }
  const QuietLog quiet;

  struct Area {
    VerbsSide::Memory near, far;
    RemoteMemory remote;
    ibv_mr* key = nullptr;  // of `far`
  };
  Area area(uint64_t bytes) {
    Area made{a.memory(bytes), b.memory(bytes), {}, nullptr};
    made.remote = joint->attach(1, made.far);
    made.key = b.keyOf(made.far);
    return made;
  }
  bool isWell() {
    return joint->until(
        [&] { return joint->link(0).health().isOk() && joint->link(1).health().isOk(); });
  }
  static HcaControl const& hca() { return HcaControl::get(); }

  VerbsSide a, b;
  std::optional<VerbsJoint> joint;
};

class VerbsStripes : public testing::TestWithParam<const char*> {
 protected:
  // The first large transfer asks for more pairs; this waits until both sides have them.
  void grow(Stage& stage, Stage::Area& area) {
    Poster poster(*stage.joint, 0);
    poster.put({{area.near.bytes.data(), &area.remote, 0, kLarge}});
    // It went over one pair, so its end does not say that the bytes stand: they would come over
    // what the test writes there next.
    poster.flush(area.remote);
    ASSERT_EQ(stage.joint->settle(poster), Code::kOk);
    ASSERT_TRUE(stage.joint->until(
        [&] { return stage.joint->agent(0).pairs() == 4 && stage.joint->agent(1).pairs() == 4; }));
  }
};
INSTANTIATE_TEST_SUITE_P(Placing, VerbsStripes, testing::Values("inorder", "relaxed", "adaptive"));

HcaSettings placing(const std::string& order) {
  HcaSettings settings;
  if (order != "inorder")
    settings = {{"ORDER", order}, {"SEED", "7"}, {"WINDOW_US", "300"}, {"ACK", "received"}};
  return settings;
}

TEST_P(VerbsStripes, AWordAfterASharedPutFindsAllOfIt) {
  const std::string order = GetParam();
  Stage stage({.ordersWrites = order != "adaptive", .pairs = 4}, kPatient, placing(order));
  Stage::Area data = stage.area(kLarge), flag = stage.area(4096);
  fillPattern(data.near.bytes, 1);
  grow(stage, data);
  for (uint64_t round = 2; round < 8; ++round) {
    fillPattern(data.near.bytes, round);
    Poster poster(*stage.joint, 0);
    poster.put({{data.near.bytes.data(), &data.remote, 0, kLarge}});
    poster.store(flag.remote, 64, round);
    ASSERT_TRUE(stage.joint->until([&] { return wordAt(flag.far, 64) == round; }, {&poster}));
    ASSERT_EQ(firstWrong(data.far.bytes, round), kLarge) << "round " << round;
    ASSERT_EQ(stage.joint->settle(poster), Code::kOk);
  }
}

TEST_P(VerbsStripes, ASharedGetBringsAllOfIt) {
  const std::string order = GetParam();
  Stage stage({.ordersWrites = order != "adaptive", .pairs = 4}, kPatient, placing(order));
  Stage::Area data = stage.area(kLarge);
  fillPattern(data.near.bytes, 1);
  grow(stage, data);
  fillPattern(data.far.bytes, 5);
  Poster poster(*stage.joint, 0);
  poster.get({{data.near.bytes.data(), &data.remote, 0, kLarge}});
  ASSERT_EQ(stage.joint->settle(poster), Code::kOk);
  EXPECT_EQ(firstWrong(data.near.bytes, 5), kLarge);
}

TEST_F(VerbsStripes, EachPairHasAShare) {
  Stage stage({.pairs = 4}, kPatient);
  Stage::Area data = stage.area(kLarge);
  fillPattern(data.near.bytes, 1);
  grow(stage, data);
  SoftwareHcaCounts before{}, after{};
  EXPECT_EQ(stage.hca().counts(stage.joint->pair(0), &before), 0);
  stage.a.resetCounts();
  Poster poster(*stage.joint, 0);
  poster.put({{data.near.bytes.data(), &data.remote, 0, kLarge}});
  ASSERT_EQ(stage.joint->settle(poster), Code::kOk);
  EXPECT_EQ(stage.hca().counts(stage.joint->pair(0), &after), 0);
  const SoftwareHcaCounts all = stage.a.counts();
  EXPECT_EQ(all.writeBytes, kLarge);
  EXPECT_LE(after.writeBytes, kLarge / 2) << "the first pair carried more than half";
  EXPECT_GE(all.reads, 2u) << "a proof for each pair that had a share";
}

TEST_F(VerbsStripes, SmallTransfersGoByTheFirstPair) {
  Stage stage({.pairs = 4}, kPatient);
  Stage::Area data = stage.area(kLarge);
  grow(stage, data);
  stage.a.resetCounts();
  Poster poster(*stage.joint, 0);
  poster.put({{data.near.bytes.data(), &data.remote, 0, kSmall}});
  poster.store(data.remote, kSmall, 3);
  ASSERT_EQ(stage.joint->settle(poster), Code::kOk);
  EXPECT_EQ(stage.a.counts().posts, 1u);
}

TEST_F(VerbsStripes, NoPairsAreMadeForSmallTransfers) {
  Stage stage({.pairs = 4}, kPatient);
  Stage::Area data = stage.area(kLarge);
  Poster poster(*stage.joint, 0);
  for (int i = 0; i < 200; ++i) {
    poster.put({{data.near.bytes.data(), &data.remote, 0, kSmall}});
    ASSERT_EQ(stage.joint->settle(poster), Code::kOk);
  }
  EXPECT_EQ(stage.joint->agent(0).pairs(), 1u);
  EXPECT_EQ(stage.joint->agent(1).pairs(), 1u);
}

TEST_F(VerbsStripes, ADeviceWithoutFurtherPairsGoesOnWithOne) {
  Stage stage({.pairs = 4}, kPatient);
  Stage::Area data = stage.area(kLarge);
  fillPattern(data.near.bytes, 1);
  stage.b.inject(SOFTWARE_HCA_CREATE_FAILS, -1, ENOMEM);
  for (int i = 0; i < 2; ++i) {
    Poster poster(*stage.joint, 0);
    poster.put({{data.near.bytes.data(), &data.remote, 0, kLarge}});
    ASSERT_EQ(stage.joint->settle(poster), Code::kOk);
  }
  EXPECT_EQ(stage.joint->agent(0).pairs(), 1u);
  EXPECT_EQ(firstWrong(data.far.bytes, 1), kLarge);
  stage.b.inject(SOFTWARE_HCA_CREATE_FAILS, 0);
}

class VerbsRemake : public testing::Test {
 protected:
  explicit VerbsRemake(Patience patience = kHasty) : stage_{{.pairs = 2}, patience} {}

  // All of the near area but its end goes to the far one, and the word after it.
  void putWithWord(Poster& poster, uint64_t word) {
    poster.put({{data_.near.bytes.data(), &data_.remote, 0, kSmall - 8}});
    poster.store(data_.remote, kSmall - 8, word);
  }

  Stage stage_;
  Stage::Area data_ = stage_.area(kSmall);
  VerbsJoint& joint_ = *stage_.joint;
  const HcaControl& hca_ = HcaControl::get();
};

TEST_F(VerbsRemake, ARevokedKeyEndsItsWorkAndOthersGoOn) {
  Stage::Area good = stage_.area(kSmall);
  fillPattern(data_.near.bytes, 1);
  hca_.hold(stage_.a.device());
  Poster before(joint_, 0), guilty(joint_, 0), after(joint_, 0);
  before.put({{data_.near.bytes.data(), &good.remote, 0, 512}});
  before.serve();
  guilty.put({{data_.near.bytes.data(), &data_.remote, 0, kSmall}});
  guilty.serve();
  after.put({{data_.near.bytes.data(), &good.remote, 1024, 512}});
  after.store(good.remote, 2048, 7);
  after.serve();
  EXPECT_EQ(hca_.revoke(data_.key), 0);
  hca_.release(stage_.a.device());
  EXPECT_EQ(joint_.settle(before), Code::kOk);
  EXPECT_EQ(joint_.settle(guilty), Code::kPermissionDenied);
  EXPECT_EQ(joint_.settle(after), Code::kOk);
  EXPECT_EQ(firstWrong(good.far.bytes.first(512), 1), 512u);
  EXPECT_EQ(wordAt(good.far, 2048), 7u);
  EXPECT_TRUE(stage_.isWell()) << joint_.link(0).health().toString();
  // Both directions go on.
  const RemoteMemory back = joint_.attach(0, good.near);
  Poster there(joint_, 1);
  there.store(back, 0, 9);
  EXPECT_EQ(joint_.settle(there), Code::kOk);
  EXPECT_EQ(wordAt(good.near, 0), 9u);
}

// A refusal is an answer: no number of them in a row is the end of the link.
TEST_F(VerbsRemake, RefusalsInARowEndTheirWorksAlone) {
  Stage::Area good = stage_.area(kSmall);
  fillPattern(data_.near.bytes, 1);
  EXPECT_EQ(hca_.revoke(data_.key), 0);
  for (int i = 0; i < 10; ++i) {
    Poster guilty(joint_, 0);
    guilty.put({{data_.near.bytes.data(), &data_.remote, 0, kSmall}});
    ASSERT_EQ(joint_.settle(guilty), Code::kPermissionDenied) << "refusal " << i;
  }
  ASSERT_TRUE(stage_.isWell()) << joint_.link(0).health().toString();
  Poster after(joint_, 0);
  after.put({{data_.near.bytes.data(), &good.remote, 0, kSmall}});
  EXPECT_EQ(joint_.settle(after), Code::kOk);
  EXPECT_EQ(firstWrong(good.far.bytes, 1), kSmall);
}

// The owner may learn of the refusal, by an event of its device, before the poster sees the answer.
TEST_F(VerbsRemake, TheOwnerMayBeginTheRoundOfARefusal) {
  Stage::Area good = stage_.area(kSmall);
  fillPattern(data_.near.bytes, 1);
  EXPECT_EQ(hca_.revoke(data_.key), 0);
  for (int i = 0; i < 10; ++i) {
    Poster guilty(joint_, 0), after(joint_, 0);
    guilty.put({{data_.near.bytes.data(), &data_.remote, 0, kSmall}});
    guilty.serve();
    after.put({{data_.near.bytes.data(), &good.remote, 0, kSmall}});
    after.serve();
    ASSERT_TRUE(joint_.until([&] { return joint_.agent(1).isBroken(); }, {}, {1}));
    ASSERT_EQ(joint_.settle(guilty), Code::kPermissionDenied) << "round " << i;
    ASSERT_EQ(joint_.settle(after), Code::kOk) << "round " << i;
    ASSERT_EQ(firstWrong(good.far.bytes, 1), kSmall);
  }
  EXPECT_TRUE(stage_.isWell()) << joint_.link(0).health().toString();
}

// Requests of the owner's own that its device flushes with the refusal are no failures either.
TEST_F(VerbsRemake, RefusalsByAnOwnerWithWorksUnderWayEndNoLink) {
  Stage::Area good = stage_.area(kSmall);
  const RemoteMemory back = joint_.attach(0, good.near);
  Poster first(joint_, 1), there(joint_, 1);
  first.put({{good.far.bytes.data(), &back, 0, 512}});
  ASSERT_EQ(joint_.settle(first), Code::kOk);
  EXPECT_EQ(hca_.revoke(data_.key), 0);
  hca_.hold(stage_.b.device());
  there.put({{good.far.bytes.data(), &back, 0, 512}});
  there.serve();
  for (int i = 0; i < 10; ++i) {
    Poster guilty(joint_, 0);
    guilty.put({{data_.near.bytes.data(), &data_.remote, 0, kSmall}});
    ASSERT_EQ(joint_.settle(guilty), Code::kPermissionDenied) << "round " << i;
    ASSERT_TRUE(stage_.isWell()) << joint_.link(1).health().toString();
  }
  hca_.release(stage_.b.device());
  EXPECT_EQ(joint_.settle(there), Code::kOk);
}

TEST_F(VerbsRemake, ASilenceAfterARefusalHasItsTry) {
  Stage::Area good = stage_.area(kSmall);
  fillPattern(data_.near.bytes, 1);
  EXPECT_EQ(hca_.revoke(data_.key), 0);
  Poster guilty(joint_, 0), after(joint_, 0);
  guilty.put({{data_.near.bytes.data(), &data_.remote, 0, kSmall}});
  ASSERT_EQ(joint_.settle(guilty), Code::kPermissionDenied);
  ASSERT_TRUE(stage_.isWell());
  stage_.a.inject(SOFTWARE_HCA_LOSE_REQUESTS, -1);
  after.put({{data_.near.bytes.data(), &good.remote, 0, kSmall}});
  ASSERT_TRUE(joint_.until([&] { return !joint_.link(0).health().isOk(); }, {&after}));
  stage_.a.inject(SOFTWARE_HCA_LOSE_REQUESTS, 0);
  EXPECT_EQ(joint_.settle(after), Code::kOk);
  EXPECT_EQ(firstWrong(good.far.bytes, 1), kSmall);
}

// Until then the owner's word that it takes the memory back may still be on its way.
TEST_F(VerbsRemake, ARefusedWorkEndsWhenThePeerHasAnswered) {
  Poster poster(joint_, 0);
  EXPECT_EQ(hca_.revoke(data_.key), 0);
  poster.put({{data_.near.bytes.data(), &data_.remote, 0, kSmall}});
  ASSERT_TRUE(joint_.until([&] { return joint_.agent(0).isBroken(); }, {&poster}, {0}));
  for (int turns = 0; turns < 100; ++turns) {
    joint_.run(0);
    poster.serve();
  }
  EXPECT_FALSE(poster.idle());
  EXPECT_EQ(joint_.settle(poster), Code::kPermissionDenied);
}

TEST_F(VerbsRemake, ARefusedWorkThatIsAbandonedWaitsForNobody) {
  Poster poster(joint_, 0);
  EXPECT_EQ(hca_.revoke(data_.key), 0);
  poster.put({{data_.near.bytes.data(), &data_.remote, 0, kSmall}});
  ASSERT_TRUE(joint_.until([&] { return joint_.agent(0).isBroken(); }, {&poster}, {0}));
  for (int turns = 0; turns < 100; ++turns) joint_.run(0);
  poster.mailbox().abort(Code::kCancelled);
  ASSERT_TRUE(joint_.until([&] { return poster.idle(); }, {&poster}, {0}));
  EXPECT_EQ(poster.takeCode(), Code::kPermissionDenied);
}

TEST_F(VerbsRemake, RequestsThatWereLostGoAgain) {
  fillPattern(data_.near.bytes, 2);
  stage_.a.inject(SOFTWARE_HCA_LOSE_REQUESTS, -1, 0, joint_.number(0));
  Poster poster(joint_, 0);
  putWithWord(poster, 5);
  EXPECT_EQ(joint_.settle(poster), Code::kOk);
  EXPECT_EQ(firstWrong(data_.far.bytes.first(kSmall - 8), 2), kSmall - 8);
  EXPECT_EQ(wordAt(data_.far, kSmall - 8), 5u);
}

// The consumer that saw the word uses the memory for something else.
TEST_F(VerbsRemake, WhatAWordWasSeenOfIsNotPostedAgain) {
  fillPattern(data_.near.bytes, 3);
  stage_.a.inject(SOFTWARE_HCA_LOSE_ANSWERS, -1, 0, joint_.number(0));
  Poster poster(joint_, 0);
  putWithWord(poster, 5);
  ASSERT_TRUE(joint_.until([&] { return wordAt(data_.far, kSmall - 8) == 5; }, {&poster}, {0}));
  fillPattern(data_.far.bytes, 8);
  EXPECT_EQ(joint_.settle(poster), Code::kOk) << "the peer said that it took the news";
  EXPECT_EQ(firstWrong(data_.far.bytes, 8), kSmall) << "posted again";
}

TEST_F(VerbsRemake, AnAdditionIsNeverDoneTwice) {
  stage_.a.inject(SOFTWARE_HCA_LOSE_ANSWERS, -1, 0, joint_.number(0));
  Poster poster(joint_, 0);
  poster.add64(data_.remote, 0, 5);
  const Code code = joint_.settle(poster);
  EXPECT_TRUE(code == Code::kOk || code == Code::kPeerLost) << static_cast<int>(code);
  EXPECT_EQ(wordAt(data_.far, 0), 5u);
  EXPECT_TRUE(stage_.isWell());
}

TEST_F(VerbsRemake, GetsAndFlushesGoAgain) {
  fillPattern(data_.far.bytes, 6);
  stage_.a.inject(SOFTWARE_HCA_LOSE_ANSWERS, -1, 0, joint_.number(0));
  Poster poster(joint_, 0);
  poster.get({{data_.near.bytes.data(), &data_.remote, 0, kSmall}});
  poster.flush(data_.remote);
  EXPECT_EQ(joint_.settle(poster), Code::kOk);
  EXPECT_EQ(firstWrong(data_.near.bytes, 6), kSmall);
}

TEST_F(VerbsRemake, BothSidesFailAtOnce) {
  const RemoteMemory back = joint_.attach(0, data_.near);
  Poster here(joint_, 0), there(joint_, 1);
  here.put({{data_.near.bytes.data(), &data_.remote, 0, 4096}});
  there.put({{data_.far.bytes.data() + 8192, &back, 8192, 4096}});
  here.serve();
  there.serve();
  for (const int side : {1, 0}) (void)hca_.break_pair(joint_.pair(side));
  EXPECT_EQ(joint_.settle(here), Code::kOk);
  EXPECT_EQ(joint_.settle(there), Code::kOk);
  EXPECT_TRUE(stage_.isWell());
}

TEST_F(VerbsRemake, APathThatStaysDeadEndsTheLink) {
  stage_.a.inject(SOFTWARE_HCA_LOSE_REQUESTS, -1);
  Poster poster(joint_, 0);
  poster.put({{data_.near.bytes.data(), &data_.remote, 0, kSmall}});
  EXPECT_EQ(joint_.settle(poster), Code::kPeerLost);
  EXPECT_EQ(joint_.link(0).health().code(), Code::kPeerLost);
  stage_.a.inject(SOFTWARE_HCA_LOSE_REQUESTS, 0);
}

TEST_F(VerbsRemake, AnAbandonedWorkEndsThoughThePeerSaysNothing) {
  stage_.a.inject(SOFTWARE_HCA_LOSE_REQUESTS, -1, 0, joint_.number(0));
  Poster poster(joint_, 0);
  poster.put({{data_.near.bytes.data(), &data_.remote, 0, kSmall}});
  ASSERT_TRUE(joint_.until([&] { return joint_.link(0).health().code() == Code::kTryAgain; },
                           {&poster}, {0}));
  poster.mailbox().abort(Code::kCancelled);
  ASSERT_TRUE(joint_.until([&] { return poster.idle(); }, {&poster}, {0}))
      << "it waited for the peer";
  EXPECT_EQ(poster.takeCode(), Code::kCancelled);
  EXPECT_TRUE(stage_.isWell());
}

TEST_F(VerbsRemake, WorksThatComeMeanwhileGoAfterwards) {
  stage_.a.inject(SOFTWARE_HCA_LOSE_REQUESTS, -1, 0, joint_.number(0));
  Poster first(joint_, 0), late(joint_, 0);
  first.put({{data_.near.bytes.data(), &data_.remote, 0, 4096}});
  ASSERT_TRUE(joint_.until([&] { return joint_.link(0).health().code() == Code::kTryAgain; },
                           {&first}, {0}));
  late.store(data_.remote, 8192, 4);
  late.serve();
  EXPECT_FALSE(late.idle());
  EXPECT_EQ(joint_.settle(first), Code::kOk);
  EXPECT_EQ(joint_.settle(late), Code::kOk);
  EXPECT_EQ(wordAt(data_.far, 8192), 4u);
}

TEST_F(VerbsRemake, ManyTimesInARow) {
  for (uint64_t round = 1; round <= 10; ++round) {
    stage_.a.inject(SOFTWARE_HCA_LOSE_REQUESTS, 3);
    fillPattern(data_.near.bytes, round);
    Poster poster(joint_, 0);
    putWithWord(poster, round);
    ASSERT_EQ(joint_.settle(poster), Code::kOk) << "round " << round;
    ASSERT_EQ(firstWrong(data_.far.bytes.first(kSmall - 8), round), kSmall - 8);
  }
  EXPECT_TRUE(stage_.isWell());
}

TEST_F(VerbsRemake, SharedTransfersGoAgainWhole) {
  Stage::Area large = stage_.area(kLarge);
  fillPattern(large.near.bytes, 1);
  Poster poster(joint_, 0);
  poster.put({{large.near.bytes.data(), &large.remote, 0, kLarge}});
  ASSERT_EQ(joint_.settle(poster), Code::kOk);
  ASSERT_TRUE(joint_.until([&] { return joint_.agent(0).pairs() == 2; }));
  fillPattern(large.near.bytes, 2);
  stage_.a.inject(SOFTWARE_HCA_LOSE_REQUESTS, -1, 0, joint_.number(0), 2);
  poster.put({{large.near.bytes.data(), &large.remote, 0, kLarge}});
  ASSERT_EQ(joint_.settle(poster), Code::kOk);
  EXPECT_EQ(firstWrong(large.far.bytes, 2), kLarge);
}

// How many faults in a row end a link, and what is none of them. Where side 1 has a work under way
// its device is held, so that the work stays there and nothing breaks the row.
class VerbsFaultsInARow : public VerbsRemake {
 protected:
  static constexpr int kMostRemakes = 3;  // as VerbsAgent's

  VerbsFaultsInARow() : VerbsRemake(kPatient) {}

  // What is large goes over two pairs from now on.
  void grow(int side, const VerbsSide::Memory& from, const RemoteMemory& to) {
    Poster poster(joint_, side);
    poster.put({{from.bytes.data(), &to, 0, kLarge}});
    ASSERT_EQ(joint_.settle(poster), Code::kOk);
    ASSERT_TRUE(
        joint_.until([&] { return joint_.agent(0).pairs() == 2 && joint_.agent(1).pairs() == 2; }));
  }
  // Side 1 sees that its requests were flushed, and not why: its loop, which has the events, takes
  // no turn.
  void seeFlush() {
    ASSERT_TRUE(joint_.until(
        [&] {
          (void)joint_.link(1).poll();
          return !joint_.link(1).health().isOk();
        },
        {}, {}));
  }
  // Side 1 sees the events alone.
  void seeEvents() {
    ASSERT_TRUE(joint_.until(
        [&] {
          stage_.b.turn();
          return !joint_.link(1).health().isOk();
        },
        {}, {}));
  }
  // A fault of the device of side 1, which has a work under way.
  void flushSide1() {
    EXPECT_EQ(hca_.break_pair(stage_.b.lastPair()), 0);
    seeFlush();
  }
  // As many faults as side 1 goes on after.
  void flushSide1ToTheLimit() {
    for (int fault = 1; fault <= kMostRemakes; ++fault) {
      flushSide1();
      ASSERT_TRUE(goesOn(1)) << "fault " << fault << ": " << joint_.link(1).health().toString();
    }
  }
  // `fault`, which flushes, is one more, and `words` say so. The peer hears of no new pair then,
  // for which it would wait.
  void endByOneMore(const std::function<void()>& fault, const std::string& words) {
    const RemoteMemory back = joint_.attach(0, data_.near);
    hca_.hold(stage_.b.device());
    Poster there(joint_, 1);
    there.put({{data_.far.bytes.data(), &back, 0, 4096}});
    there.serve();
    flushSide1ToTheLimit();
    fault();
    seeFlush();
    ASSERT_TRUE(
        joint_.until([&] { return joint_.link(1).health().code() == Code::kPeerLost; }, {}, {1}));
    EXPECT_NE(joint_.link(1).health().message().find(words), std::string::npos)
        << joint_.link(1).health().toString();
    for (int turns = 0; turns < 100; ++turns) joint_.run(0);
    EXPECT_TRUE(joint_.link(0).health().isOk()) << joint_.link(0).health().toString();
    hca_.release(stage_.b.device());
    EXPECT_EQ(joint_.settle(there), Code::kPeerLost);
  }
  const verbs::Library& verbsOfSide1() { return stage_.b.nic()->device().library(); }
  // After a fault that the side has seen: its pairs are made anew.
  bool goesOn(int side) {
    EXPECT_TRUE(joint_.until([&] { return joint_.link(side).health().code() != Code::kTryAgain; }));
    return joint_.link(side).health().isOk() && stage_.isWell();
  }
};

// The device of this side does not do what it is told, which is no answer of the peer's. Refusals
// between are answers, and neither are counted nor break the row.
TEST_F(VerbsFaultsInARow, OfTheDeviceOfThisSideEndTheLink) {
  Stage::Area good = stage_.area(kSmall);
  const VerbsSide::Memory spoilt = stage_.a.memory(kSmall);
  const auto putSpoilt = [&] {
    Poster poster(joint_, 0);
    poster.put({{spoilt.bytes.data(), &good.remote, 0, kSmall}});
    return joint_.settle(poster);
  };
  ASSERT_EQ(putSpoilt(), Code::kOk);  // it is registered now
  ibv_mr* const key = stage_.a.keyOf(spoilt);
  ASSERT_NE(key, nullptr);
  EXPECT_EQ(hca_.revoke(key), 0);
  EXPECT_EQ(hca_.revoke(data_.key), 0);
  for (int fault = 1; fault <= kMostRemakes; ++fault) {
    EXPECT_EQ(putSpoilt(), Code::kPeerLost);
    ASSERT_TRUE(goesOn(0)) << "fault " << fault << ": " << joint_.link(0).health().toString();
    Poster refused(joint_, 0);
    refused.put({{good.near.bytes.data(), &data_.remote, 0, kSmall}});
    // This side has the answer before the peer begins a round because of it.
    ASSERT_TRUE(joint_.until([&] { return !joint_.link(0).health().isOk(); }, {&refused}, {0}));
    EXPECT_EQ(joint_.settle(refused), Code::kPermissionDenied);
    ASSERT_TRUE(goesOn(0)) << "refusal " << fault << ": " << joint_.link(0).health().toString();
  }
  EXPECT_EQ(putSpoilt(), Code::kPeerLost);
  EXPECT_FALSE(goesOn(0)) << "faults without end";
  EXPECT_EQ(joint_.link(0).health().code(), Code::kPeerLost);
}

TEST_F(VerbsFaultsInARow, OfWhichEventsTellEndTheLink) {
  for (int fault = 1; fault <= kMostRemakes; ++fault) {
    EXPECT_EQ(hca_.break_pair(stage_.b.lastPair()), 0);
    seeEvents();
    ASSERT_TRUE(goesOn(1)) << "fault " << fault << ": " << joint_.link(1).health().toString();
  }
  EXPECT_EQ(hca_.break_pair(stage_.b.lastPair()), 0);
  seeEvents();
  EXPECT_FALSE(goesOn(1)) << "faults without end";
  EXPECT_EQ(joint_.link(1).health().code(), Code::kPeerLost);
}

// A refusal takes back the count of a flush that it caused, and not that of an earlier fault. Here
// it causes none that is seen before its events, of which each pair has one.
TEST_F(VerbsFaultsInARow, StayCountedWhenARefusalFollows) {
  Stage::Area large = stage_.area(kLarge);
  const RemoteMemory back = joint_.attach(0, data_.near);
  hca_.hold(stage_.b.device());
  Poster there(joint_, 1), guilty(joint_, 0);
  there.put({{data_.far.bytes.data(), &back, 0, 4096}});
  there.serve();
  flushSide1();
  ASSERT_TRUE(goesOn(1)) << joint_.link(1).health().toString();
  grow(0, large.near, large.remote);
  EXPECT_EQ(hca_.revoke(large.key), 0);
  guilty.put({{large.near.bytes.data(), &large.remote, 0, kLarge}});
  guilty.serve();
  hca_.settle(stage_.a.device());
  seeEvents();
  EXPECT_EQ(joint_.settle(guilty), Code::kPermissionDenied);
  ASSERT_TRUE(goesOn(1)) << joint_.link(1).health().toString();
  for (int fault = 2; fault <= kMostRemakes; ++fault) {
    flushSide1();
    ASSERT_TRUE(goesOn(1)) << "fault " << fault << ": " << joint_.link(1).health().toString();
  }
  flushSide1();
  EXPECT_FALSE(goesOn(1)) << "the refusal took back what it had not caused";
  hca_.release(stage_.b.device());
  EXPECT_EQ(joint_.settle(there), Code::kPeerLost);
}

// The second pair brings an answer after the flush of the first one was counted and before its
// cause is known: there is no count left to take back.
TEST_F(VerbsFaultsInARow, AreNoFewerThanNoneAfterProgress) {
  Stage::Area large = stage_.area(kLarge);
  const RemoteMemory back = joint_.attach(0, large.near);
  grow(1, large.far, back);
  EXPECT_EQ(hca_.revoke(data_.key), 0);
  hca_.hold(stage_.b.device());
  Poster there(joint_, 1), guilty(joint_, 0);
  there.put({{large.far.bytes.data(), &back, 0, kLarge}});
  there.serve();
  guilty.put({{data_.near.bytes.data(), &data_.remote, 0, kSmall}});
  guilty.serve();
  seeFlush();
  hca_.release(stage_.b.device());
  hca_.settle(stage_.b.device());
  hca_.hold(stage_.b.device());
  ASSERT_TRUE(joint_.until([&] { return !joint_.link(1).poll(); }, {}, {}));
  ASSERT_TRUE(goesOn(1)) << joint_.link(1).health().toString();
  flushSide1();
  EXPECT_TRUE(goesOn(1)) << joint_.link(1).health().toString();
  hca_.release(stage_.b.device());
  EXPECT_EQ(joint_.settle(guilty), Code::kPermissionDenied);
  EXPECT_EQ(joint_.settle(there), Code::kOk);
}

// One more fault would end the link, and the flush is seen before its cause.
TEST_F(VerbsFaultsInARow, AreNotOneMoreByARefusal) {
  Stage::Area good = stage_.area(kSmall);
  const RemoteMemory back = joint_.attach(0, good.near);
  EXPECT_EQ(hca_.revoke(data_.key), 0);
  hca_.hold(stage_.b.device());
  Poster there(joint_, 1);
  there.put({{good.far.bytes.data(), &back, 0, 4096}});
  there.serve();
  flushSide1ToTheLimit();
  for (int refusal = 1; refusal <= 2; ++refusal) {
    Poster guilty(joint_, 0);
    guilty.put({{data_.near.bytes.data(), &data_.remote, 0, kSmall}});
    guilty.serve();
    seeFlush();
    ASSERT_TRUE(goesOn(1)) << "refusal " << refusal << ": " << joint_.link(1).health().toString();
    EXPECT_EQ(joint_.settle(guilty), Code::kPermissionDenied);
  }
  flushSide1();
  EXPECT_FALSE(goesOn(1)) << "the refusals took back what they had not caused";
  hca_.release(stage_.b.device());
  EXPECT_EQ(joint_.settle(there), Code::kPeerLost);
}

TEST_F(VerbsFaultsInARow, EndTheLinkInTheWordsOfTheEvent) {
  endByOneMore([&] { EXPECT_EQ(hca_.break_pair(stage_.b.lastPair()), 0); },
               verbsOfSide1().ibv_event_type_str(IBV_EVENT_QP_FATAL));
}

TEST_F(VerbsFaultsInARow, EndTheLinkInTheWordsOfTheFlushWithoutAnEvent) {
  ibv_qp_attr failed{};
  failed.qp_state = IBV_QPS_ERR;
  endByOneMore(
      [&] {
        EXPECT_EQ(verbsOfSide1().ibv_modify_qp(stage_.b.lastPair(), &failed, IBV_QP_STATE), 0);
      },
      "(status " + std::to_string(IBV_WC_WR_FLUSH_ERR) + ", vendor's code ");
}

// Both pairs refuse their part of one transfer, after the one flush was counted.
TEST_F(VerbsFaultsInARow, AreNoneAfterTwoRefusals) {
  Stage::Area large = stage_.area(kLarge);
  const RemoteMemory back = joint_.attach(0, large.near);
  grow(1, large.far, back);
  EXPECT_EQ(hca_.revoke(large.key), 0);
  hca_.hold(stage_.b.device());
  Poster there(joint_, 1), guilty(joint_, 0);
  there.put({{data_.far.bytes.data(), &back, 0, 4096}});
  there.serve();
  guilty.put({{large.near.bytes.data(), &large.remote, 0, kLarge}});
  guilty.serve();
  hca_.settle(stage_.a.device());
  seeFlush();
  ASSERT_TRUE(goesOn(1)) << joint_.link(1).health().toString();
  flushSide1ToTheLimit();
  hca_.release(stage_.b.device());
  EXPECT_EQ(joint_.settle(guilty), Code::kPermissionDenied);
  EXPECT_EQ(joint_.settle(there), Code::kOk);
}

}  // namespace
}  // namespace peerlane
