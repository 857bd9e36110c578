// SPDX-License-Identifier: Apache-2.0
//
// Which receive takes which envelope: numbers, messages whose pieces differ in number at the two
// sides, and numbers that the sender wants back.
#include "peerlane/channel/message/host/receive_matcher.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

namespace peerlane {
namespace {

using Match = ReceiveMatcher::Match;
using Posted = ReceiveMatcher::Posted;

// Receives without batches: their index says which they are.
class Receives final : public ReceiveQueue {
 public:
  // All pieces of one more message.
  void post(uint16_t pieces) {
    for (uint16_t i = 0; i < pieces; ++i)
      queue_.push_back({.batch = nullptr,
                        .index = posted_++,
                        .part = pieces == 1 ? Part() : Part{.index = i, .count = pieces},
                        .ordinal = ordinal_});
    ++ordinal_;
  }
  bool nextReceive(Posted& receive) override {
    if (queue_.empty()) return false;
    receive = queue_.front();
    queue_.pop_front();
    return true;
  }

 private:
  std::deque<Posted> queue_;
  size_t posted_ = 0;
  uint8_t ordinal_ = 0;
};

// The envelopes of messages with these numbers of pieces, by number.
std::vector<Envelope> sent(const std::vector<uint16_t>& messages) {
  std::vector<Envelope> envelopes;
  for (size_t ordinal = 0; ordinal < messages.size(); ++ordinal)
    for (uint16_t i = 0; i < messages[ordinal]; ++i) {
      Envelope envelope;
      envelope.number = envelopes.size();
      envelope.ordinal = static_cast<uint8_t>(ordinal);
      if (messages[ordinal] != 1) envelope.part = {.index = i, .count = messages[ordinal]};
      envelopes.push_back(envelope);
    }
  return envelopes;
}

std::vector<size_t> indicesOf(const std::vector<Posted>& receives) {
  std::vector<size_t> indices;
  for (const Posted& each : receives) indices.push_back(each.index);
  return indices;
}

class ReceiveMatching : public testing::Test {
 protected:
  Match come(const Envelope& envelope) {
    ended_.clear();
    ReceiveMatcher::Slot& slot = matcher_.at(envelope.number);
    const Match match = matcher_.match(slot, envelope, ended_);
    if (match == Match::kMeant) slot.isMet = slot.posted;
    return match;
  }
  void expectReceive(uint64_t number, size_t index) {
    const ReceiveMatcher::Slot& slot = matcher_.at(number);
    EXPECT_TRUE(slot.posted && !slot.isLeftOver) << number;
    EXPECT_EQ(index, slot.wanted.index) << number;
  }

  Receives receives_;
  ReceiveMatcher matcher_{receives_};
  std::vector<Posted> ended_;
};

TEST_F(ReceiveMatching, ReceivesGetNumbersInOrderWhileTheWindowHasRoom) {
  for (uint32_t i = 0; i < ReceiveMatcher::kSlots + 1; ++i) receives_.post(1);
  EXPECT_EQ(0u, matcher_.admit());
  EXPECT_EQ(ReceiveMatcher::kSlots, matcher_.next());
  EXPECT_FALSE(matcher_.canPass());
  EXPECT_EQ(Match::kMeant, come(sent({1})[0]));
  EXPECT_TRUE(matcher_.canPass());
  matcher_.pass();
  EXPECT_EQ(0u, matcher_.admit());
  EXPECT_EQ(1u, matcher_.head());
  expectReceive(ReceiveMatcher::kSlots, ReceiveMatcher::kSlots);
}

TEST_F(ReceiveMatching, AMessageWithMorePiecesThanItsReceiveLeavesNumbersOver) {
  receives_.post(2);
  receives_.post(1);
  matcher_.admit();
  const auto envelopes = sent({3, 1});
  EXPECT_EQ(Match::kRealigned, come(envelopes[0]));
  EXPECT_EQ((std::vector<size_t>{0, 1}), indicesOf(ended_));
  EXPECT_TRUE(matcher_.hasMore());
  EXPECT_EQ(3u, matcher_.admit());
  for (uint64_t number = 0; number < 3; ++number) {
    EXPECT_TRUE(matcher_.at(number).isLeftOver) << number;
    EXPECT_EQ(Match::kMeant, come(envelopes[number])) << number;
  }
  expectReceive(3, 2);
  EXPECT_EQ(Match::kMeant, come(envelopes[3]));
}

TEST_F(ReceiveMatching, AMessageWithFewerPiecesEndsReceivesThatHaveNoNumberYet) {
  receives_.post(20);
  receives_.post(1);
  matcher_.admit();
  const auto envelopes = sent({2, 1});
  EXPECT_EQ(Match::kRealigned, come(envelopes[1]));
  EXPECT_EQ(20u, ended_.size());
  EXPECT_EQ(2u, matcher_.admit());
  expectReceive(2, 20);
  EXPECT_EQ(Match::kMeant, come(envelopes[2]));
}

TEST_F(ReceiveMatching, ALaterEnvelopeWaitsForTheOneThatShowsWherePiecesDiffer) {
  receives_.post(2);
  receives_.post(1);
  matcher_.admit();
  const auto envelopes = sent({1, 1});
  EXPECT_EQ(Match::kNotYet, come(envelopes[1]));
  EXPECT_EQ(Match::kRealigned, come(envelopes[0]));
  EXPECT_EQ((std::vector<size_t>{0, 1}), indicesOf(ended_));
  EXPECT_EQ(1u, matcher_.admit());
  EXPECT_EQ(Match::kMeant, come(envelopes[1]));
  expectReceive(1, 2);
}

// C came first and is for the receive that has its number; both keep it.
TEST_F(ReceiveMatching, AMessageThatIsMetKeepsItsNumber) {
  receives_.post(1);
  receives_.post(3);
  receives_.post(1);
  receives_.post(1);
  matcher_.admit();
  const auto envelopes = sent({2, 2, 1, 1});
  EXPECT_EQ(Match::kMeant, come(envelopes[4]));
  EXPECT_EQ(Match::kRealigned, come(envelopes[0]));
  EXPECT_EQ((std::vector<size_t>{0}), indicesOf(ended_));
  EXPECT_EQ(2u, matcher_.admit());
  expectReceive(2, 1);
  expectReceive(3, 2);
  expectReceive(4, 4);
  EXPECT_EQ(Match::kRealigned, come(envelopes[2]));
  EXPECT_EQ((std::vector<size_t>{1, 2, 3}), indicesOf(ended_));
  EXPECT_EQ(2u, matcher_.admit());
  expectReceive(4, 4);
  expectReceive(5, 5);
  EXPECT_EQ(Match::kMeant, come(envelopes[5]));
}

TEST_F(ReceiveMatching, ASenderThatSkipsAMessageIsCorrupt) {
  receives_.post(1);
  receives_.post(1);
  matcher_.admit();
  auto envelopes = sent({1, 1});
  EXPECT_EQ(Match::kMeant, come(envelopes[0]));
  envelopes[1].ordinal = 7;
  EXPECT_EQ(Match::kCorrupt, come(envelopes[1]));
}

TEST_F(ReceiveMatching, ASenderThatChangesItsMindAboutPiecesIsCorrupt) {
  receives_.post(2);
  matcher_.admit();
  auto envelopes = sent({2});
  EXPECT_EQ(Match::kMeant, come(envelopes[0]));
  envelopes[1].part.count = 3;
  EXPECT_EQ(Match::kCorrupt, come(envelopes[1]));
  matcher_.pass();
  EXPECT_EQ(Match::kCorrupt, come(envelopes[1])) << "its first piece was passed";
}

TEST_F(ReceiveMatching, WithdrawnNumbersAreKeptUntilTheyEndOrArePassed) {
  receives_.post(1);
  matcher_.admit();
  EXPECT_TRUE(matcher_.withdraw(0));
  EXPECT_FALSE(matcher_.withdraw(0)) << "known";
  EXPECT_TRUE(matcher_.withdraw(2));
  EXPECT_TRUE(matcher_.withdraw(ReceiveMatcher::kSlots)) << "after the window";
  EXPECT_EQ((std::vector<uint64_t>{2}), matcher_.withdrawnUnposted());
  EXPECT_EQ(2u, matcher_.at(2).number);
  EXPECT_EQ(Match::kMeant, come(sent({1, 1, 1})[2])) << "nobody has posted a receive for it";
  EXPECT_FALSE(matcher_.at(2).isMet);
  EXPECT_TRUE(matcher_.endWithdrawal(2));
  EXPECT_FALSE(matcher_.endWithdrawal(2));
  EXPECT_EQ(Match::kMeant, come(sent({1})[0]));
  matcher_.pass();
  EXPECT_EQ(1u, matcher_.dropPassedWithdrawals());
  EXPECT_FALSE(matcher_.withdraw(0)) << "passed";
  EXPECT_TRUE(matcher_.isWithdrawn(ReceiveMatcher::kSlots));
}

TEST_F(ReceiveMatching, ASenderCannotMakeTheWithdrawnNumbersGrow) {
  uint64_t number = 0;
  while (matcher_.withdraw(number)) ++number;
  EXPECT_EQ(2 * ReceiveMatcher::kSlots, number);
}

}  // namespace
}  // namespace peerlane
