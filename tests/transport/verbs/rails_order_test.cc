// SPDX-License-Identifier: Apache-2.0
//
// The order of what mailboxes do over two NICs, of which the first carries the words, on devices
// that acknowledge bytes before these stand in memory: docs/network.md has the table.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>

#include "peerlane/program/words/word.h"
#include "peerlane/session/peer/mailboxes.h"
#include "tests/core/expect_ok.h"
#include "tests/fake/patterned_bytes.h"
#include "tests/transport/verbs/verbs_joint.h"

namespace peerlane {
namespace {

constexpr uint64_t kData = 24 * 1024;
constexpr int kRounds = 60;

struct Placing {
  const char* order;
  const char* seed;
  bool ordersWrites;
};

// The wire between two sides: a device of each.
struct Rail {
  Rail(const Placing& how, const char* device)
      : settings{{"DEVICES", device},
                 {"ORDER", how.order},
                 {"SEED", how.seed},
                 {"WINDOW_US", "300"},
                 {"ACK", "received"}} {
    for (VerbsSide* side : {&a, &b}) {
      side->config.ibTimeout = 20;  // 4.3 s: no pair may fail, however busy the machine is
      side->config.ibRetry = 6;
    }
    joint.emplace(a, b, JointOptions{.ordersWrites = how.ordersWrites});
  }
  Link& link() { return joint->link(0); }
  void turn() {
    joint->run(0);
    joint->run(1);
  }

  const HcaSettings settings;
  VerbsSide a{settings}, b{settings};
  std::optional<VerbsJoint> joint;
};

// Puts go over the second rail; words and gets over the first.
struct Stage {
  explicit Stage(const Placing& how) : first(how, "sw0"), second(how, "sw1") {
    words = &first.link();
    data.agent = &second.link();
    dataByFirst.agent = flag.agent = &first.link();
  }

  // Entries of one mailbox, through the dispatch that a peer has.
  struct Lane {
    explicit Lane(Stage& at) : stage(at) {}
    ~Lane() { stage.settle(*this); }
    void put(uint64_t seed) {
      fillPattern(stage.near.bytes, seed);
      copy(Verb::kPut, {stage.near.bytes.data(), &stage.data, 0, kData});
    }
    void getByFirst() { copy(Verb::kGet, {stage.back.bytes.data(), &stage.dataByFirst, 0, kData}); }
    void tell(Verb verb, uint64_t operand = 0) {
      MailboxEntry& entry = *mailbox.claim();
      entry.verb = verb;
      entry.remote = &stage.flag;
      entry.operand = operand;
      mailbox.ring();
    }
    void copy(Verb verb, const Piece& what) {
      piece[verb == Verb::kPut ? 0 : 1] = what;
      MailboxEntry& entry = *mailbox.claim();
      entry.verb = verb;
      entry.pieces = &piece[verb == Verb::kPut ? 0 : 1];
      entry.pieceCount = 1;
      mailbox.ring();
    }

    Stage& stage;
    Piece piece[2];
    LinkDispatch dispatch{stage.words};
    Mailbox mailbox{dispatch};
  };

  // Looks at `done` after every step of either side.
  template <typename Done>
  bool until(Lane& lane, const Done& done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!done()) {
      lane.mailbox.serve();
      first.turn();
      second.turn();
      if (std::chrono::steady_clock::now() > deadline) return false;
    }
    return true;
  }
  void settle(Lane& lane) {
    EXPECT_TRUE(until(lane, [&] { return lane.mailbox.idle(); }));
    EXPECT_EQ(lane.mailbox.code(), Code::kOk);
  }
  uint64_t seen() const { return loadWord(board.bytes.data(), Width::k64); }

  Rail first, second;
  std::atomic<const Agent*> words;
  VerbsSide::Memory near = second.a.memory(kData), far = second.b.memory(kData);
  VerbsSide::Memory back = first.a.memory(kData), board = first.b.memory(4096);
  RemoteMemory data = second.joint->attach(1, far), dataByFirst = first.joint->attach(1, far);
  RemoteMemory flag = first.joint->attach(1, board);
};

class RailsOrder : public testing::TestWithParam<Placing> {
 protected:
  testing::AssertionResult isWhole(uint64_t seed) {
    const size_t wrong = firstWrong(stage_.far.bytes, seed);
    if (wrong == kData) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "byte " << wrong << " of round " << seed;
  }
  Stage stage_{GetParam()};
};
constexpr Placing kInOrder{"ibta", "1", true}, kRelaxed{"relaxed", "2", true},
    kAdaptive{"adaptive", "3", false};
INSTANTIATE_TEST_SUITE_P(Placing, RailsOrder, testing::Values(kInOrder, kRelaxed, kAdaptive),
                         [](const auto& each) { return std::string(each.param.order); });

TEST_P(RailsOrder, DataIsWholeWhenItsPutIsDone) {
  for (uint64_t round = 1; round <= kRounds; ++round) {
    Stage::Lane lane(stage_);
    lane.put(round);
    ASSERT_TRUE(stage_.until(lane, [&] { return lane.mailbox.idle(); }));
    ASSERT_TRUE(isWhole(round));
  }
}

TEST_P(RailsOrder, DataIsWholeWhenItsWordIsSeen) {
  for (uint64_t round = 1; round <= kRounds; ++round) {
    Stage::Lane lane(stage_);
    lane.put(round);
    lane.tell(Verb::kStore, round);
    ASSERT_TRUE(stage_.until(lane, [&] { return stage_.seen() == round; }));
    ASSERT_TRUE(isWhole(round));
  }
}

TEST_P(RailsOrder, DataIsWholeWhenItsAdditionIsSeen) {
  for (uint64_t round = 1; round <= kRounds; ++round) {
    Stage::Lane lane(stage_);
    lane.put(round);
    lane.tell(Verb::kAdd64, 1);
    ASSERT_TRUE(stage_.until(lane, [&] { return stage_.seen() == round; }));
    ASSERT_TRUE(isWhole(round));
  }
}

// A post of its own, after the user heard that the put is done.
TEST_P(RailsOrder, DataIsWholeWhenAWordOfAnotherMailboxIsSeen) {
  for (uint64_t round = 1; round <= kRounds; ++round) {
    Stage::Lane lane(stage_), other(stage_);
    lane.put(round);
    ASSERT_TRUE(stage_.until(lane, [&] { return lane.mailbox.idle(); }));
    other.tell(Verb::kStore, round);
    ASSERT_TRUE(stage_.until(other, [&] { return stage_.seen() == round; }));
    ASSERT_TRUE(isWhole(round));
  }
}

TEST_P(RailsOrder, AllIsThereWhenAFlushIsDone) {
  for (uint64_t round = 1; round <= kRounds; ++round) {
    Stage::Lane lane(stage_);
    lane.put(round);
    lane.tell(Verb::kStore, round);
    lane.tell(Verb::kFlush);
    ASSERT_TRUE(stage_.until(lane, [&] { return lane.mailbox.idle(); }));
    ASSERT_EQ(stage_.seen(), round);
    ASSERT_TRUE(isWhole(round));
  }
}

TEST_P(RailsOrder, AGetByTheOtherSeesThePutBeforeIt) {
  for (uint64_t round = 1; round <= kRounds; ++round) {
    Stage::Lane lane(stage_);
    lane.put(round);
    lane.getByFirst();
    ASSERT_TRUE(stage_.until(lane, [&] { return lane.mailbox.idle(); }));
    ASSERT_EQ(firstWrong(stage_.back.bytes, round), kData) << "round " << round;
  }
}

TEST_P(RailsOrder, APutAfterAGetByTheOtherLeavesItTheOldBytes) {
  for (uint64_t round = 1; round <= kRounds; ++round) {
    fillPattern(stage_.far.bytes, round);
    Stage::Lane lane(stage_);
    lane.getByFirst();
    lane.put(round + 1);
    ASSERT_TRUE(stage_.until(lane, [&] { return lane.mailbox.idle(); }));
    ASSERT_EQ(firstWrong(stage_.back.bytes, round), kData) << "round " << round;
    ASSERT_TRUE(isWhole(round + 1));
  }
}

// One more request for a put, and none for what goes over the rail of the words.
TEST_P(RailsOrder, OnlyAPutOverTheOtherIsProven) {
  const uint64_t before = stage_.first.a.counts().reads + stage_.second.a.counts().reads;
  {
    Stage::Lane lane(stage_);
    lane.put(1);
  }
  EXPECT_EQ(stage_.second.a.counts().reads, before + 1);
  stage_.words = &stage_.second.link();
  {
    Stage::Lane lane(stage_);
    lane.put(2);
  }
  EXPECT_EQ(stage_.second.a.counts().reads, before + 1);
}

// The tests above can fail: where the second rail is believed to carry the words, its puts are done
// when they are acknowledged, and a word of the first one is seen before the data.
TEST(RailsOrderViolated, IsSeenWhereNothingProvesThePut) {
  for (const Placing& how : {kRelaxed, kAdaptive}) {
    Stage stage(how);
    stage.words = &stage.second.link();
    bool isViolated = false;
    for (uint64_t round = 1; round <= 2'000 && !isViolated; ++round) {
      Stage::Lane lane(stage);
      lane.put(round);
      lane.tell(Verb::kStore, round);
      ASSERT_TRUE(stage.until(lane, [&] { return stage.seen() == round; }));
      isViolated = firstWrong(stage.far.bytes, round) != kData;
    }
    EXPECT_TRUE(isViolated) << how.order;
  }
}

}  // namespace
}  // namespace peerlane
