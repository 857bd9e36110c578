// SPDX-License-Identifier: Apache-2.0
//
// Works over a NIC that their poster no longer wants: what was posted ends by its answer, what was
// not is left out, and nobody else waits for it.
#include <gtest/gtest.h>

#include <vector>

#include "tests/core/expect_ok.h"
#include "tests/fake/patterned_bytes.h"
#include "tests/transport/verbs/verbs_joint.h"

namespace peerlane {
namespace {

constexpr uint64_t kPage = 4096;

class VerbsAbandon : public testing::Test {
 protected:
  VerbsAbandon() {
    local_ = sides_[0].memory(256 * kPage);
    there_ = sides_[1].memory(512 * kPage);
    remote_ = joint_.attach(1, there_);
    fillPattern(local_.bytes, 1);
  }
  void hold() { HcaControl::get().hold(sides_[0].device()); }
  void release() { HcaControl::get().release(sides_[0].device()); }
  // A put of so many requests.
  void putApart(Poster& poster, uint64_t requests) {
    std::vector<Piece> pieces;
    for (uint64_t i = 0; i < requests; ++i)
      pieces.push_back({local_.bytes.data() + i * kPage, &remote_, 2 * i * kPage, kPage});
    poster.put(std::move(pieces));
  }
  // So many words that the next one must wait for the peer.
  void useUpCredits(Poster& poster) {
    for (uint32_t i = 0; i < 3; ++i) poster.store(remote_, 511 * kPage, i);
    poster.serve();
  }

  VerbsSide sides_[2];
  VerbsJoint joint_{sides_[0], sides_[1], {.window = 4}};
  VerbsSide::Memory local_, there_;
  RemoteMemory remote_;
};

TEST_F(VerbsAbandon, AWorkThatIsHalfPostedEndsByItsAnswers) {
  hold();
  Poster poster(joint_, 0);
  putApart(poster, 200);
  poster.serve();
  poster.mailbox().abort(Code::kCancelled);
  poster.serve();
  joint_.run(0);
  EXPECT_FALSE(poster.idle()) << "its memory is in the device's hands";
  release();
  EXPECT_EQ(joint_.settle(poster), Code::kCancelled);
  uint64_t whole = 0;
  for (uint64_t i = 0; i < 200; ++i)
    whole += std::equal(local_.bytes.begin() + static_cast<ptrdiff_t>(i * kPage),
                        local_.bytes.begin() + static_cast<ptrdiff_t>((i + 1) * kPage),
                        there_.bytes.begin() + static_cast<ptrdiff_t>(2 * i * kPage))
                 ? 1
                 : 0;
  EXPECT_EQ(whole, uint64_t{QueuePair::kRequests}) << "what was posted, and no more";
  poster.mailbox().clearAbort();
  putApart(poster, 200);
  EXPECT_EQ(joint_.settle(poster), Code::kOk) << "the link goes on";
}

TEST_F(VerbsAbandon, AWorkThatWaitsEndsAtOnce) {
  hold();
  Poster first(joint_, 0), second(joint_, 0);
  putApart(first, 200);
  first.serve();
  putApart(second, 2);
  second.serve();
  second.mailbox().abort(Code::kCancelled);
  second.serve();
  EXPECT_TRUE(second.idle());
  EXPECT_EQ(second.takeCode(), Code::kCancelled);
  release();
  EXPECT_EQ(joint_.settle(first), Code::kOk);
}

// Its answer would have been that of the entry before it, too. `isBehind`: another mailbox's word
// waits behind it, and goes on waiting.
class VerbsAbandonLast : public VerbsAbandon, public testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(OthersWait, VerbsAbandonLast, testing::Bool());

TEST_P(VerbsAbandonLast, LeavesTheOneBeforeItItsAnswer) {
  Poster words(joint_, 0), poster(joint_, 0), behind(joint_, 0);
  useUpCredits(words);
  putApart(poster, 1);
  poster.store(remote_, 510 * kPage, 1);
  poster.serve();
  if (GetParam()) behind.store(remote_, 509 * kPage, 1);
  behind.serve();
  poster.mailbox().abort(Code::kCancelled);
  poster.serve();
  // The peer attends to nothing.
  HcaControl::get().settle(sides_[0].device());
  for (int turns = 0; turns < 1000; ++turns) joint_.run(0);
  EXPECT_EQ(firstWrong(there_.bytes.first(kPage), 1), kPage);
  EXPECT_TRUE(poster.idle());
  EXPECT_EQ(behind.idle(), !GetParam());
  EXPECT_EQ(joint_.settle(poster), Code::kCancelled);
  EXPECT_EQ(joint_.settle(words), Code::kOk);
  EXPECT_EQ(joint_.settle(behind), Code::kOk);
}

TEST_F(VerbsAbandon, AWorkThatWasPostedWholeIsNotLeftOut) {
  hold();
  Poster poster(joint_, 0);
  putApart(poster, 2);
  poster.serve();
  poster.mailbox().abort(Code::kCancelled);
  poster.serve();
  EXPECT_FALSE(poster.idle());
  release();
  EXPECT_EQ(joint_.settle(poster), Code::kOk);
}

TEST_F(VerbsAbandon, SlotsOfAnAbandonedWorkComeBack) {
  const uint64_t bytes = uint64_t{BounceSlots::kSlots + 8} * BounceSlots::kSlotBytes;
  const auto loose = sides_[0].memory(bytes, /*isHeld=*/false);
  const auto far = sides_[1].memory(bytes);
  const RemoteMemory toFar = joint_.attach(1, far);
  hold();
  Poster poster(joint_, 0);
  poster.put({{loose.bytes.data(), &toFar, 0, bytes}});
  poster.serve();
  poster.mailbox().abort(Code::kCancelled);
  poster.serve();
  EXPECT_FALSE(poster.idle());
  release();
  EXPECT_EQ(joint_.settle(poster), Code::kCancelled);
  EXPECT_TRUE(sides_[0].areSlotsFree());
}

}  // namespace
}  // namespace peerlane
