// SPDX-License-Identifier: Apache-2.0
//
// A peer that stands still in the middle of a put: whoever waits for it hears that it is silent,
// and the memory it writes is kept until it is heard again or proven dead.
#include <future>

#include "tests/faults/surviving_side.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr size_t kBytes = 32 << 20;
constexpr const char* kQuarantined = "peerlane_quarantined_regions";

class FrozenPeer : public testing::TestWithParam<const char*> {
 protected:
  FrozenPeer() : side_(impatient(GetParam()), GetParam(), kBytes) {}

  bool isCut() const { return peerlane::isCut(side_.memory->data(), kBytes); }
  void freezeInTheMiddle() { side_.freezeInTheMiddle(side_.memory->data(), kBytes); }
  void becomeSilent() {
    ASSERT_TRUE(soon([&] { return side_.peer.state() == "silent"; }));
  }
  void quarantine() {
    freezeInTheMiddle();
    becomeSilent();
    Status kept;
    // The progress thread may be late on a busy machine: the call says so, and may be made again.
    ASSERT_TRUE(soon([&] {
      kept = side_.context->unregister(side_.memory->region(), 50ms);
      return kept.code() != Code::kTimeout;
    }));
    ASSERT_EQ(kept.code(), Code::kPeerSilent) << kept.toString();
    EXPECT_NE(kept.message().find("quarantined"), std::string_view::npos) << kept.toString();
  }
  bool ours() const {
    return std::string(GetParam()) == "cma" || std::string(GetParam()) == "ring";
  }
  // The region of the library is given back to the system with its end; ours is ours.
  void expectFreed() {
    if (!ours()) {
      EXPECT_FALSE(isMapped(side_.memory->data(), kBytes));
    }
    EXPECT_EQ(metricOf(*side_.context, kQuarantined), 0);
  }

  SurvivingSide side_;
};

INSTANTIATE_TEST_SUITE_P(Routes, FrozenPeer, testing::Values("mapped", "cma", "ring", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

TEST_P(FrozenPeer, EveryWaitHearsThatItIsSilent) {
  const Peer& peer = side_.peer;
  Notify note;
  note.message = std::span<const std::byte>();
  for (int i = 0; i < 16; ++i) ASSERT_OK(MUST(notify(peer, note)).wait(kSoon));
  const Transfer stuck = MUST(notify(peer, note));  // nobody takes the first
  EXPECT_FALSE(stuck.done());
  freezeInTheMiddle();
  const Signal signal = MUST(Signal::create(peer, 5));
  std::vector<std::future<Status>> waits;
  const auto wait = [&](auto call) {
    waits.push_back(std::async(std::launch::async, std::move(call)));
  };
  wait([&] { return signal.wait(1, kSoon); });
  wait([&] { return waitNotification(peer, kSoon).status(); });
  wait([&] { return peer.receiveMessage(9, kSoon).status(); });
  wait([&] { return stuck.wait(kSoon); });
  for (size_t i = 0; i < waits.size(); ++i) {
    const Status status = waits[i].get();
    EXPECT_EQ(status.code(), Code::kPeerSilent) << i << ": " << status.toString();
  }
  EXPECT_EQ(peer.state(), "silent");
  EXPECT_EQ(peer.status().code(), Code::kPeerSilent);
  const Block block = side_.whole();
  EXPECT_EQ(put(peer, {&block, 1}).status().code(), Code::kPeerSilent);
  EXPECT_EQ(get(peer, {&block, 1}).status().code(), Code::kPeerSilent);
  EXPECT_EQ(notify(peer, note).status().code(), Code::kPeerSilent);
  EXPECT_EQ(pollNotification(peer).status().code(), Code::kPeerSilent);
  EXPECT_EQ(peer.sendMessage(1, {}).code(), Code::kPeerSilent);
}

TEST_P(FrozenPeer, TheMemoryItMayWriteIsNotHandedBack) {
  quarantine();
  EXPECT_EQ(metricOf(*side_.context, kQuarantined), 1);
  EXPECT_NE(side_.context->dump().find("quarantined"), std::string::npos) << side_.context->dump();
  EXPECT_EQ(side_.context->unregister(side_.memory->region(), 1ms).code(), Code::kPeerSilent);
  EXPECT_EQ(metricOf(*side_.context, kQuarantined), 1) << "asked twice, counted once";
  EXPECT_TRUE(isMapped(side_.memory->data(), kBytes));
  EXPECT_TRUE(isCut());
  // Nobody else gets its place.
  for (int i = 0; i < 4; ++i) {
    const Region another = MUST(side_.context->allocate(kBytes));
    EXPECT_TRUE(another.data() + kBytes <= side_.memory->data() ||
                side_.memory->data() + kBytes <= another.data());
  }
}

TEST_P(FrozenPeer, HeardAgainItGivesTheMemoryBackAndWorks) {
  quarantine();
  const Region another = MUST(side_.context->allocate(kBytes));
  std::memset(another.data(), 77, kBytes);
  side_.other->thaw();
  EXPECT_OK(side_.context->unregister(side_.memory->region(), kSoon));
  expectFreed();
  EXPECT_TRUE(isFilledWith(another.data(), kBytes, 77));
  EXPECT_EQ(side_.peer.state(), "ready");
  EXPECT_EQ(side_.other->line(), "ended Closed");
  EXPECT_EQ(side_.other->ask("state"), "ready");
  // New transfers, both ways.
  const Block there{&another, 0, &side_.theirs, 0, kBytes};
  EXPECT_OK(MUST(put(side_.peer, {&there, 1})).wait(kSoon));
  const Region back = MUST(side_.context->allocate(kBytes));
  const Block here{&back, 0, &side_.theirs, 0, kBytes};
  EXPECT_OK(MUST(get(side_.peer, {&here, 1})).wait(kSoon));
  EXPECT_TRUE(isFilledWith(back.data(), kBytes, 77));
}

TEST_P(FrozenPeer, KilledWhileFrozenItLetsGo) {
  quarantine();
  side_.other->kill();
  EXPECT_OK(side_.context->unregister(side_.memory->region(), kSoon));
  EXPECT_EQ(side_.peer.status().code(), Code::kPeerLost);
  expectFreed();
}

// Where an agent moves the bytes it may be in the middle of our memory, for as long as the peer
// stands still: the put has not ended. With the peer it ends.
TEST_P(FrozenPeer, WhatAnAgentHoldsEndsOnceThePeerIsHeardOrDead) {
  const Region source = MUST(side_.context->allocate(kBytes));
  const Block block{&source, 0, &side_.theirs, 0, kBytes};
  ASSERT_OK(side_.theirs.prepare(kSoon));
  const bool mayBeHeld = side_.theirs.engine() == "ring" || side_.theirs.engine() == "socket";
  for (const bool dies : {false, true}) {
    side_.other->freeze();
    const Transfer held = MUST(put(side_.peer, {&block, 1}));
    becomeSilent();
    EXPECT_EQ(held.done(), !mayBeHeld);
    if (dies)
      side_.other->kill();
    else
      side_.other->thaw();
    const Status ended = held.wait(kSoon);
    if (!mayBeHeld) {
      EXPECT_OK(ended);  // the caller has copied
    } else if (dies) {   // the link may hear of it before the session, which says silent then
      EXPECT_TRUE(ended.code() == Code::kPeerLost || ended.code() == Code::kPeerSilent)
          << ended.toString();
    } else {
      EXPECT_TRUE(ended.isOk() || ended.code() == Code::kPeerSilent) << ended.toString();
    }
    if (!dies) {
      ASSERT_TRUE(soon([&] { return side_.peer.state() == "ready"; }));
      EXPECT_OK(MUST(put(side_.peer, {&block, 1})).wait(kSoon));
    }
  }
}

// Without a quarantine asked for: it stood still, nobody minded.
TEST_P(FrozenPeer, ABriefStopEndsNothing) {
  freezeInTheMiddle();
  side_.other->thaw();
  EXPECT_OK(side_.context->unregister(side_.memory->region(), kSoon));
  EXPECT_EQ(side_.other->line(), "ended Closed");
  EXPECT_EQ(metricOf(*side_.context, kQuarantined), 0);
}

TEST_P(FrozenPeer, ItDoesNotFreezeTheEndOfThisContext) {
  quarantine();
  side_.context.reset();
  if (ours()) return;
  // Without the last handle: where it writes by itself it may go on, on tcp nobody does but this
  // side.
  const std::byte* const bytes = side_.memory->data();
  side_.peer = {};
  side_.theirs = {};
  side_.memory.reset();
  EXPECT_EQ(isMapped(bytes, kBytes), std::string(GetParam()) == "mapped");
}

}  // namespace
}  // namespace peerlane
