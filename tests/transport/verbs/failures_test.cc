// SPDX-License-Identifier: Apache-2.0
//
// What a link over a NIC does when the device, the port, a key or the peer fails: each work ends
// once with the right code, the device is left with nothing, and links that are not concerned go
// on.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "tests/core/expect_ok.h"
#include "tests/core/quiet_log.h"
#include "tests/fake/patterned_bytes.h"
#include "tests/transport/verbs/verbs_joint.h"

namespace peerlane {
namespace {

constexpr uint64_t kBytes = 64 * 1024;

// Two links over the same two NICs; faults fall on the first.
class VerbsFailures : public testing::Test {
 protected:
  VerbsFailures() {
    for (VerbsSide& side : sides_) {
      side.config.ibTimeout = 14;  // 67 ms: a busy machine is no dead peer
      side.config.ibRetry = 2;
    }
    joint_ = std::make_unique<VerbsJoint>(sides_[0], sides_[1]);
    other_ = std::make_unique<VerbsJoint>(sides_[0], sides_[1]);
    local_ = sides_[0].memory(kBytes);
    there_ = sides_[1].memory(kBytes);
    remote_ = joint_->attach(1, there_);
    key_ = sides_[1].keyOf(there_);
    fillPattern(local_.bytes, 1);
  }
  const QuietLog quiet_;

  void put(Poster& poster) { poster.put({{local_.bytes.data(), &remote_, 0, kBytes}}); }
  // The second link carries bytes and words in both directions.
  void expectOtherGoesOn() {
    const auto near = sides_[0].memory(kBytes), far = sides_[1].memory(kBytes);
    const RemoteMemory toFar = other_->attach(1, far), toNear = other_->attach(0, near);
    fillPattern(near.bytes, 9);
    Poster here(*other_, 0), back(*other_, 1);
    here.put({{near.bytes.data(), &toFar, 0, kBytes - 8}});
    here.store(toFar, kBytes - 8, 5);
    EXPECT_EQ(other_->settle(here), Code::kOk);
    EXPECT_EQ(firstWrong(far.bytes.first(kBytes - 8), 9), kBytes - 8);
    back.store(toNear, 0, 6);
    EXPECT_EQ(other_->settle(back), Code::kOk);
    EXPECT_OK(other_->link(0).health());
    EXPECT_OK(other_->link(1).health());
  }
  // The link is over for good, and says why.
  void expectEnd(int side, Code code, const std::string& words) {
    EXPECT_TRUE(joint_->until([&] { return !joint_->link(side).health().isOk(); }));
    const Status health = joint_->link(side).health();
    EXPECT_EQ(health.code(), code) << health.toString();
    EXPECT_NE(health.message().find(words), std::string::npos) << health.toString();
    if (side == 1) return;
    Poster late(*joint_, 0);
    put(late);
    EXPECT_EQ(joint_->settle(late), code);
  }
  const HcaControl& hca() { return HcaControl::get(); }

  VerbsSide sides_[2];
  std::unique_ptr<VerbsJoint> joint_, other_;
  VerbsSide::Memory local_, there_;
  RemoteMemory remote_;
  ibv_mr* key_ = nullptr;
};

TEST_F(VerbsFailures, ARevokedKeyEndsItsWorkAndThePair) {
  hca().hold(sides_[0].device());
  Poster guilty(*joint_, 0), before(*joint_, 0), after(*joint_, 0);
  const auto good = sides_[1].memory(kBytes);
  const RemoteMemory toGood = joint_->attach(1, good);
  before.put({{local_.bytes.data(), &toGood, 0, 512}});
  before.serve();
  put(guilty);
  guilty.serve();
  after.put({{local_.bytes.data(), &toGood, 1024, 512}});
  after.serve();
  EXPECT_EQ(hca().revoke(key_), 0);
  hca().release(sides_[0].device());
  EXPECT_EQ(joint_->settle(before), Code::kOk);
  EXPECT_EQ(joint_->settle(guilty), Code::kPermissionDenied);
  EXPECT_EQ(joint_->settle(after), Code::kPeerLost);
  EXPECT_EQ(firstWrong(good.bytes.first(512), 1), 512u);
  expectEnd(0, Code::kPeerLost, "refused by the peer's device");
  expectEnd(1, Code::kPeerLost, "a key that does not allow it");
  expectOtherGoesOn();
}

TEST_F(VerbsFailures, AKeyThatThePeerNeverGaveIsRefused) {
  RemoteMemory wrong = remote_;
  wrong.linkKey ^= uint64_t{0x10} << 32;
  Poster poster(*joint_, 0);
  poster.get({{local_.bytes.data(), &wrong, 0, 512}});
  EXPECT_EQ(joint_->settle(poster), Code::kPermissionDenied);
  EXPECT_EQ(firstWrong(local_.bytes, 1), kBytes) << "a refused get wrote";
  expectEnd(0, Code::kPeerLost, "refused");
  expectOtherGoesOn();
}

TEST_F(VerbsFailures, AnAddressOutsideTheRegionIsRefusedByThePeersDevice) {
  RemoteMemory wrong = remote_;
  wrong.grant.bytes *= 2;  // this side believes that there is more
  Poster poster(*joint_, 0);
  poster.put({{local_.bytes.data(), &wrong, kBytes - 512, 1024}});
  EXPECT_EQ(joint_->settle(poster), Code::kPermissionDenied);
  expectEnd(0, Code::kPeerLost, "refused");
  expectOtherGoesOn();
}

TEST_F(VerbsFailures, WhatThisSideCanSeeIsRefusedHere) {
  const auto readable = sides_[1].memory(kBytes, true, Access::kRemoteRead);
  const RemoteMemory toReadable = joint_->attach(1, readable);
  Poster poster(*joint_, 0);
  sides_[0].resetCounts();
  poster.put({{local_.bytes.data(), &toReadable, 0, 8}});
  EXPECT_EQ(joint_->settle(poster), Code::kPermissionDenied);
  poster.put({{local_.bytes.data(), &remote_, kBytes - 4, 8}});
  EXPECT_EQ(joint_->settle(poster), Code::kInvalidArgument);
  poster.store(remote_, 4, 1);
  EXPECT_EQ(joint_->settle(poster), Code::kInvalidArgument);
  EXPECT_EQ(sides_[0].counts().requests, 0u);
  EXPECT_OK(joint_->link(0).health());
}

TEST_F(VerbsFailures, APeerWithoutReceivesEndsThePair) {
  sides_[1].inject(SOFTWARE_HCA_NOT_READY, -1, 0, joint_->number(1));
  Poster poster(*joint_, 0), word(*joint_, 0);
  put(poster);
  poster.serve();
  word.store(remote_, 0, 5);
  EXPECT_EQ(joint_->settle(word), Code::kPeerLost);
  expectEnd(0, Code::kPeerLost, "the peer had no receive after all tries");
  EXPECT_GT(sides_[0].counts().rnrRetries, 0u);
  sides_[1].inject(SOFTWARE_HCA_NOT_READY, 0);
  expectOtherGoesOn();
}

TEST_F(VerbsFailures, AShortLackOfReceivesIsWaitedFor) {
  sides_[1].inject(SOFTWARE_HCA_NOT_READY, 2, 0, joint_->number(1));
  Poster word(*joint_, 0);
  word.store(remote_, 0, 5);
  EXPECT_EQ(joint_->settle(word), Code::kOk);
  EXPECT_EQ(sides_[0].counts().rnrRetries, 2u);
}

TEST_F(VerbsFailures, RequestsThatNeverArriveEndThePair) {
  sides_[0].inject(SOFTWARE_HCA_LOSE_REQUESTS, -1, 0, joint_->number(0));
  Poster poster(*joint_, 0), second(*joint_, 0);
  put(poster);
  second.store(remote_, 0, 5);
  second.serve();
  EXPECT_EQ(joint_->settle(poster), Code::kPeerLost);
  EXPECT_EQ(joint_->settle(second), Code::kPeerLost);
  expectEnd(0, Code::kPeerLost, "no acknowledgement after all tries");
  expectEnd(0, Code::kPeerLost, "PEERLANE_IB_TIMEOUT and PEERLANE_IB_RETRY");
  expectOtherGoesOn();
}

TEST_F(VerbsFailures, AnAnswerThatIsLostOnceCostsNothing) {
  sides_[0].inject(SOFTWARE_HCA_LOSE_ANSWERS, 1, 0, joint_->number(0));
  Poster poster(*joint_, 0);
  poster.add64(remote_, 0, 5);
  EXPECT_EQ(joint_->settle(poster), Code::kOk);
  uint64_t word = 0;
  std::memcpy(&word, there_.bytes.data(), sizeof word);
  EXPECT_EQ(word, 5u) << "executed again";
  EXPECT_GT(sides_[0].counts().retries, 0u);
}

TEST_F(VerbsFailures, AnswersThatNeverComeEndThePairThoughTheBytesAreThere) {
  sides_[0].inject(SOFTWARE_HCA_LOSE_ANSWERS, -1, 0, joint_->number(0));
  Poster poster(*joint_, 0);
  put(poster);
  EXPECT_EQ(joint_->settle(poster), Code::kPeerLost);
  EXPECT_EQ(firstWrong(there_.bytes, 1), kBytes);
  expectEnd(0, Code::kPeerLost, "no acknowledgement after all tries");
  sides_[0].inject(SOFTWARE_HCA_LOSE_ANSWERS, 0);
  expectOtherGoesOn();
}

TEST_F(VerbsFailures, APortThatComesBackInTimeCostsNothing) {
  for (VerbsSide& side : sides_) {
    side.config.ibTimeout = 18;  // 1 s
    side.config.ibRetry = 6;
  }
  joint_ = std::make_unique<VerbsJoint>(sides_[0], sides_[1]);
  remote_ = joint_->attach(1, there_);
  hca().set_port(sides_[0].device(), 0);
  Poster poster(*joint_, 0);
  put(poster);
  poster.serve();
  joint_->run(0);
  EXPECT_FALSE(poster.idle());
  hca().set_port(sides_[0].device(), 1);
  EXPECT_EQ(joint_->settle(poster), Code::kOk);
  EXPECT_EQ(firstWrong(there_.bytes, 1), kBytes);
  expectOtherGoesOn();
}

TEST_F(VerbsFailures, APortThatStaysDownEndsWhatIsUnderWay) {
  hca().set_port(sides_[0].device(), 0);
  Poster poster(*joint_, 0);
  put(poster);
  EXPECT_EQ(joint_->settle(poster), Code::kPeerLost);
  hca().set_port(sides_[0].device(), 1);
  expectEnd(0, Code::kPeerLost, "no acknowledgement after all tries");
  expectOtherGoesOn();  // it had nothing under way
}

TEST_F(VerbsFailures, APairThatTheDeviceGivesUpEndsAlone) {
  hca().hold(sides_[0].device());
  Poster poster(*joint_, 0);
  put(poster);
  poster.serve();
  EXPECT_EQ(hca().break_pair(joint_->pair(0)), 0);
  hca().release(sides_[0].device());
  EXPECT_EQ(joint_->settle(poster), Code::kPeerLost);
  EXPECT_EQ(joint_->link(0).health().code(), Code::kPeerLost);
  expectOtherGoesOn();
}

TEST_F(VerbsFailures, AnOverrunEndsEveryLinkOverTheDevice) {
  EXPECT_EQ(hca().overrun(sides_[0].nic()->queues().completions()), 0);
  expectEnd(0, Code::kPeerLost, "");
  Poster poster(*other_, 0);
  const RemoteMemory remote = other_->attach(1, there_);
  poster.put({{local_.bytes.data(), &remote, 0, 64}});
  EXPECT_EQ(other_->settle(poster), Code::kPeerLost);
}

TEST_F(VerbsFailures, ADeviceThatIsTakenOutEndsEveryLinkOverIt) {
  hca().hold(sides_[0].device());
  Poster poster(*joint_, 0), word(*joint_, 0);
  put(poster);
  poster.serve();
  word.store(remote_, 0, 1);
  word.serve();
  EXPECT_EQ(hca().remove_device(sides_[0].device()), 0);
  EXPECT_EQ(joint_->settle(poster), Code::kPeerLost);
  EXPECT_EQ(joint_->settle(word), Code::kPeerLost);
  EXPECT_TRUE(joint_->until([&] { return !other_->link(0).health().isOk(); }));
  expectEnd(0, Code::kPeerLost, "");
}

TEST_F(VerbsFailures, APostThatTheDriverRefusesEndsWhatItHeld) {
  for (const uint64_t after : {0, 1}) {
    auto joint = std::make_unique<VerbsJoint>(sides_[0], sides_[1]);
    const RemoteMemory remote = joint->attach(1, there_);
    sides_[0].inject(SOFTWARE_HCA_POST_FAILS, 1, ENOMEM, joint->number(0), after);
    Poster first(*joint, 0), second(*joint, 0);
    first.put({{local_.bytes.data(), &remote, 0, kBytes}});
    first.store(remote, 0, 1);
    first.serve();
    second.put({{local_.bytes.data(), &remote, 0, 64}});
    second.serve();
    const Code one = joint->settle(first), two = joint->settle(second);
    EXPECT_NE(two, Code::kOk);
    if (after == 0) {
      EXPECT_NE(one, Code::kOk);
    }
    EXPECT_NE(joint->link(0).health().message().find("takes no request"), std::string::npos);
  }
  expectOtherGoesOn();
}

TEST_F(VerbsFailures, SlotsComeBackWhenThePairEnds) {
  const auto loose = sides_[0].memory(kBytes, /*isHeld=*/false);
  hca().hold(sides_[0].device());
  Poster puts(*joint_, 0), gets(*joint_, 0);
  puts.put({{loose.bytes.data(), &remote_, 0, kBytes}});
  puts.serve();
  gets.get({{loose.bytes.data(), &remote_, 0, kBytes}});
  gets.serve();
  EXPECT_FALSE(sides_[0].areSlotsFree());
  EXPECT_EQ(hca().revoke(key_), 0);
  hca().release(sides_[0].device());
  EXPECT_EQ(joint_->settle(puts), Code::kPermissionDenied);
  EXPECT_EQ(joint_->settle(gets), Code::kPeerLost);
  EXPECT_TRUE(sides_[0].areSlotsFree());
  expectOtherGoesOn();
}

TEST_F(VerbsFailures, MoreSlotsThanThereAreIsWaitedFor) {
  constexpr uint64_t kMany = 3 * uint64_t{BounceSlots::kSlots} * BounceSlots::kSlotBytes;
  const auto loose = sides_[0].memory(kMany, /*isHeld=*/false);
  const auto far = sides_[1].memory(kMany);
  const RemoteMemory toFar = joint_->attach(1, far), viaOther = other_->attach(1, far);
  fillPattern(loose.bytes, 4);
  Poster one(*joint_, 0), two(*other_, 0);
  one.put({{loose.bytes.data(), &toFar, 0, kMany / 2}});
  two.put({{loose.bytes.data() + kMany / 2, &viaOther, kMany / 2, kMany / 2}});
  EXPECT_TRUE(joint_->until(
      [&] {
        other_->run(0);
        return one.idle() && two.idle();
      },
      {&one, &two}));
  EXPECT_EQ(firstWrong(far.bytes, 4), kMany);
  EXPECT_TRUE(sides_[0].areSlotsFree());
}

TEST_F(VerbsFailures, MemoryThatIsNotRegisteredIsToldWithTheLimit) {
  sides_[1].inject(SOFTWARE_HCA_REGISTER_FAILS, 1, ENOMEM);
  const auto more = sides_[1].memory(kBytes);
  const Result<LinkPart> part = joint_->link(1).grant(*more.record);
  EXPECT_EQ(part.status().code(), Code::kOutOfMemory);
  EXPECT_NE(part.status().message().find("ulimit -l"), std::string::npos);
  EXPECT_OK(joint_->link(1).grant(*more.record).status());
}

TEST_F(VerbsFailures, SlotsThatCannotBeMadeEndTheWorkAlone) {
  const auto loose = sides_[0].memory(kBytes, /*isHeld=*/false);
  sides_[0].inject(SOFTWARE_HCA_REGISTER_FAILS, -1, ENOMEM);
  Poster poster(*joint_, 0);
  poster.put({{loose.bytes.data(), &remote_, 0, kBytes}});
  EXPECT_EQ(joint_->settle(poster), Code::kOutOfMemory);
  sides_[0].inject(SOFTWARE_HCA_REGISTER_FAILS, 0);
  EXPECT_OK(joint_->link(0).health());
  poster.put({{loose.bytes.data(), &remote_, 0, kBytes}});
  EXPECT_EQ(joint_->settle(poster), Code::kOk);
}

// The word is with the agent before it is known that the put cannot be.
TEST_F(VerbsFailures, AWordDoesNotFollowAPutThatCouldNotBeMade) {
  const auto loose = sides_[0].memory(kBytes, /*isHeld=*/false);
  sides_[0].inject(SOFTWARE_HCA_REGISTER_FAILS, -1, ENOMEM);
  for (const bool isAfter : {true, false}) {
    const uint64_t value = isAfter ? 1 : 2;
    Poster poster(*joint_, 0);
    poster.put({{loose.bytes.data(), &remote_, 0, 4096}});
    MailboxEntry& word = *poster.mailbox().claim();
    word.verb = Verb::kStore;
    word.remote = &remote_;
    word.remoteOffset = 8192;
    word.operand = value;
    word.onlyAfterPrevious = isAfter;
    poster.mailbox().ring();
    EXPECT_EQ(joint_->settle(poster), Code::kOutOfMemory);
    uint64_t seen = 0;
    std::memcpy(&seen, there_.bytes.data() + 8192, sizeof seen);
    EXPECT_EQ(seen, isAfter ? 0u : value);
  }
  EXPECT_OK(joint_->link(0).health());
}

TEST_F(VerbsFailures, APairThatCannotBeMadeIsToldAndLeavesNothing) {
  const int before = sides_[0].objects();
  sides_[0].inject(SOFTWARE_HCA_CREATE_FAILS, -1, ENOMEM);
  VerbsNic& nic = *sides_[0].nic();
  const auto pair =
      QueuePair::create(nic.domain(), nic.queues().completions(), nic.queues().receives());
  EXPECT_EQ(pair.status().code(), Code::kOutOfMemory);
  EXPECT_NE(pair.status().message().find("makes no queue pair"), std::string::npos);
  EXPECT_EQ(sides_[0].objects(), before);
  for (const uint64_t after : {0, 1}) {
    sides_[0].inject(SOFTWARE_HCA_CREATE_FAILS, -1, ENOMEM, 0, after);
    const auto made = VerbsNic::create(
        std::shared_ptr<const verbs::VerbsDevice>(std::shared_ptr<void>(), &nic.device()),
        sides_[0].surroundings());
    EXPECT_FALSE(made.isOk());
    EXPECT_EQ(sides_[0].objects(), before);
  }
  sides_[0].inject(SOFTWARE_HCA_CREATE_FAILS, 0);
  expectOtherGoesOn();
}

TEST_F(VerbsFailures, APeerThatGoesEndsThisSide) {
  joint_->kill();
  Poster poster(*joint_, 0);
  put(poster);
  EXPECT_EQ(joint_->settle(poster, {0}), Code::kPeerLost);
}

}  // namespace
}  // namespace peerlane
