// SPDX-License-Identifier: Apache-2.0
//
// Words over a NIC take up receives of the peer, which are counted: what happens where they are
// used up.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "peerlane/program/words/word.h"
#include "tests/core/expect_ok.h"
#include "tests/fake/patterned_bytes.h"
#include "tests/transport/verbs/verbs_joint.h"

namespace peerlane {
namespace {

constexpr uint64_t kBytes = 4096;

class VerbsCredits : public testing::TestWithParam<bool> {
 protected:
  VerbsCredits() {
    for (int side : {0, 1}) {
      memory_[side] = sides_[side].memory(kBytes);
      remote_[side] = joint_.attach(side, memory_[side]);  // as the other one reaches it
    }
  }
  uint64_t word(int side, uint64_t offset) {
    return loadWord(memory_[side].bytes.data() + offset, Width::k64);
  }

  VerbsSide sides_[2];
  VerbsJoint joint_{sides_[0], sides_[1], {.ordersWrites = GetParam(), .window = 4}};
  VerbsSide::Memory memory_[2];
  RemoteMemory remote_[2];
};

// Calls `then` once, when a device has been asked to wake its side for the next completion.
class AfterArming {
 public:
  AfterArming(ibv_context* device, std::function<void()> then) : device_(device) {
    real = std::exchange(device_->ops.req_notify_cq, &arm);
    next = std::move(then);
  }
  ~AfterArming() { device_->ops.req_notify_cq = real; }
  AfterArming(const AfterArming&) = delete;
  AfterArming& operator=(const AfterArming&) = delete;

 private:
  static int arm(ibv_cq* queue, int solicitedOnly) {
    const int error = real(queue, solicitedOnly);
    if (const auto then = std::exchange(next, nullptr)) then();
    return error;
  }
  static inline int (*real)(ibv_cq*, int) = nullptr;
  static inline std::function<void()> next;
  ibv_context* const device_;
};

INSTANTIATE_TEST_SUITE_P(Words, VerbsCredits, testing::Bool(),
                         [](const auto& each) { return each.param ? "Written" : "Mailed"; });

TEST_P(VerbsCredits, ManyWordsGoThroughASmallWindow) {
  constexpr uint64_t kWords = 10'000;
  Poster poster(joint_, 0);
  uint64_t posted = 0;
  EXPECT_TRUE(joint_.until(
      [&] {
        while (posted < kWords && posted % Mailbox::kSlots != 0)
          poster.store(remote_[1], 8, ++posted);
        if (!poster.idle()) return false;
        if (posted < kWords) poster.store(remote_[1], 8, ++posted);
        return posted == kWords && poster.idle();
      },
      {&poster}));
  EXPECT_EQ(poster.takeCode(), Code::kOk);
  EXPECT_TRUE(joint_.until([&] { return word(1, 8) == kWords; }));
  EXPECT_EQ(sides_[0].counts().rnrRetries, 0u) << "more words than receives";
}

TEST_P(VerbsCredits, AdditionsAreAllThereOnce) {
  Poster poster(joint_, 0);
  for (uint64_t round = 0; round < 200; ++round) {
    for (uint32_t i = 0; i < Mailbox::kSlots; ++i) poster.add64(remote_[1], 16, 3);
    ASSERT_EQ(joint_.settle(poster), Code::kOk);
  }
  EXPECT_TRUE(joint_.until([&] { return word(1, 16) == 200 * 3 * Mailbox::kSlots; }));
}

TEST_P(VerbsCredits, APeerThatTakesNoNewsStallsWordsAlone) {
  Poster put(joint_, 0), words(joint_, 0);
  put.put({{memory_[0].bytes.data(), &remote_[1], 0, 1024}});
  put.serve();
  for (uint32_t i = 0; i < Mailbox::kSlots; ++i) words.store(remote_[1], 2048, i + 1);
  words.serve();
  EXPECT_EQ(joint_.settle(put, {0}), Code::kOk);
  HcaControl::get().settle(sides_[0].device());
  for (int i = 0; i < 100; ++i) joint_.run(0);
  EXPECT_FALSE(words.idle());
  EXPECT_EQ(sides_[0].counts().rnrRetries, 0u);
  EXPECT_OK(joint_.link(0).health());
  EXPECT_EQ(joint_.settle(words), Code::kOk);
  EXPECT_TRUE(joint_.until([&] { return word(1, 2048) == Mailbox::kSlots; }));
}

TEST_P(VerbsCredits, TwoSidesThatHaveUsedUpTheirsGetOn) {
  Poster posters[2] = {{joint_, 0}, {joint_, 1}};
  for (uint64_t round = 1; round <= 200; ++round) {
    for (int side : {0, 1}) {
      for (uint32_t i = 0; i < Mailbox::kSlots; ++i)
        posters[side].store(remote_[1 - side], 8, round * Mailbox::kSlots + i);
      posters[side].serve();
    }
    for (int side : {0, 1}) HcaControl::get().settle(sides_[side].device());
    EXPECT_TRUE(joint_.until([&] { return posters[0].idle() && posters[1].idle(); },
                             {&posters[0], &posters[1]}))
        << "round " << round;
    for (int side : {0, 1}) {
      ASSERT_EQ(posters[side].takeCode(), Code::kOk);
      ASSERT_TRUE(joint_.until([&] { return word(side, 8) == round * Mailbox::kSlots + 7; }));
    }
  }
}

// Both sides take a turn only when a thread that sleeps on the descriptors would: after the device
// has woken it. Whatever one of them waits for must wake it.
TEST_P(VerbsCredits, ASleeperIsWokenForWhatItWaitsFor) {
  for (uint64_t round = 1; round <= uint64_t{162}; ++round) {
    Poster posters[2] = {{joint_, 0}, {joint_, 1}};
    const uint32_t counts[2] = {static_cast<uint32_t>(round % 9),
                                static_cast<uint32_t>(round / 9 % 9)};
    for (int side : {0, 1}) {
      for (uint32_t i = 0; i < counts[side]; ++i)
        posters[side].store(remote_[1 - side], 24, round * 16 + i);
      posters[side].serve();
      // It has posted, so it takes a turn before it sleeps.
      joint_.run(side);
    }
    const auto isDone = [&] {
      return posters[0].idle() && posters[1].idle() &&
             (counts[1] == 0 || word(0, 24) == round * 16 + counts[1] - 1) &&
             (counts[0] == 0 || word(1, 24) == round * 16 + counts[0] - 1);
    };
    for (int quiet = 0; !isDone() && quiet < 3;) {
      for (int side : {0, 1}) HcaControl::get().settle(sides_[side].device());
      bool isWoken = false;
      for (int side : {0, 1})
        if (sides_[side].isWoken()) {
          isWoken = true;
          joint_.run(side);
          posters[side].serve();
        }
      quiet = isWoken ? 0 : quiet + 1;
    }
    ASSERT_TRUE(isDone()) << "round " << round << ": " << counts[0] << " words and " << counts[1]
                          << " back: nobody is woken any more";
    EXPECT_EQ(posters[0].takeCode(), Code::kOk);
    EXPECT_EQ(posters[1].takeCode(), Code::kOk);
  }
}

// The event of a word that comes just after the queue was armed is not taken by the look that
// follows, which would leave the queue unarmed: nothing would wake this side for the next word.
TEST_P(VerbsCredits, AWordThatComesWhileTheQueueIsArmedDoesNotDisarmIt) {
  Poster poster(joint_, 1);
  const auto send = [&](uint64_t value) {
    poster.store(remote_[0], 24, value);
    poster.serve();
    for (int side : {1, 0}) HcaControl::get().settle(sides_[side].device());
  };
  {
    const AfterArming later(sides_[0].device(), [&] { send(1); });
    joint_.run(0);
  }
  EXPECT_EQ(word(0, 24), 1u);
  for (int i = 0; sides_[0].isWoken() && i < 100; ++i) joint_.run(0);
  ASSERT_FALSE(sides_[0].isWoken()) << "it never sleeps";
  send(2);
  EXPECT_TRUE(sides_[0].isWoken());
  EXPECT_EQ(joint_.settle(poster), Code::kOk);
  EXPECT_TRUE(joint_.until([&] { return word(0, 24) == 2; }));
}

// The peer's question uses up the last but one credit of this side, which then waits for more: it
// must have asked for them.
TEST_P(VerbsCredits, ASideThatAnswersIsWokenForWhatItStillHasToSend) {
  Poster posters[2] = {{joint_, 0}, {joint_, 1}};
  const auto deviceSettles = [&] {
    for (int side : {0, 1}) HcaControl::get().settle(sides_[side].device());
  };
  for (uint64_t i = 1; i <= 3; ++i) posters[0].store(remote_[1], 24, i);
  posters[0].serve();
  joint_.run(0);
  deviceSettles();
  for (uint64_t i = 1; i <= 2; ++i) posters[1].store(remote_[0], 24, i);
  posters[1].serve();
  joint_.run(1);
  posters[1].store(remote_[0], 24, 3);
  posters[1].serve();
  joint_.run(1);
  for (int quiet = 0; quiet < 3; ++quiet) {
    deviceSettles();
    for (int side : {0, 1})
      if (sides_[side].isWoken()) {
        joint_.run(side);
        quiet = 0;
      }
  }
  const bool areIdle = posters[0].idle() && posters[1].idle();
  EXPECT_TRUE(areIdle) << "one waits, and nobody is woken";
  EXPECT_EQ(joint_.settle(posters[0]), Code::kOk);
  EXPECT_EQ(joint_.settle(posters[1]), Code::kOk);
  EXPECT_TRUE(joint_.until([&] { return word(0, 24) == 3; }));
}

// News that nobody has looked at when a link goes has taken up receives, which the next one needs.
TEST_P(VerbsCredits, PairsThatEndWithNewsUnderWayLeaveTheirReceives) {
  for (int round = 0; round < 40; ++round) {
    auto joint = std::make_unique<VerbsJoint>(sides_[0], sides_[1],
                                              JointOptions{.ordersWrites = GetParam()});
    const RemoteMemory remote = joint->attach(1, memory_[1]);
    Poster poster(*joint, 0);
    for (uint32_t i = 0; i < Mailbox::kSlots; ++i) poster.store(remote, 8, i);
    // Side 1 does not look; then the link goes. A mailed word waits until side 1 has applied it.
    if (!GetParam()) {
      ASSERT_TRUE(
          joint->until([&] { return sides_[0].counts().completions != 0; }, {&poster}, {0}));
      joint->link(0).close(Code::kClosed);
      sides_[0].resetCounts();
    }
    ASSERT_EQ(joint->settle(poster, {0}), GetParam() ? Code::kOk : Code::kClosed)
        << "round " << round;
    ASSERT_EQ(sides_[0].counts().rnrRetries, 0u) << "round " << round;
  }
}

}  // namespace
}  // namespace peerlane
