// SPDX-License-Identifier: Apache-2.0
//
// A provider takes memory back that another process is busy with: one that stands still in the
// middle of a put may still write to it, so the memory is kept until it is heard again or proven
// dead. And what a peer of an earlier version is told of such memory.
#include <future>

#include "peerlane/memory/region_table.h"
#include "peerlane/session/peer/peer_core.h"
#include "tests/fake/fake_provider.h"
#include "tests/faults/intruder.h"
#include "tests/faults/surviving_side.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr size_t kBytes = 32 << 20;
constexpr const char* kQuarantined = "peerlane_quarantined_regions";

class InvalidatedMemory : public testing::TestWithParam<const char*> {
 protected:
  InvalidatedMemory()
      : provider_(std::make_shared<FakeProvider>("arena")),
        arena_(MUST(SharedSegment::create(kBytes, {}))),
        side_(impatient(GetParam()), GetParam(), kBytes) {
    EXPECT_OK(side_.context->addProvider(provider_).status());
    const bool isShared = GetParam() == std::string_view("mapped");
    provider_->own(arena_->data(), kBytes, isShared ? arena_.get() : nullptr);
    region_ = MUST(side_.context->registerRegion(arena_->data(), kBytes, Access::kRemoteReadWrite));
    ticket_ = provider_->tickets().at(0);
    tellReference(side_.peer, 3, region_);
    EXPECT_EQ(side_.other->ask("turn to 3"), "turned");
  }

  bool isCut() const { return peerlane::isCut(arena_->data(), kBytes); }
  void freezeInTheMiddle() { side_.freezeInTheMiddle(arena_->data(), kBytes); }
  bool isUnregistered() const {
    const RegionRecord& record = *region_.record();
    return side_.peer.core()->regions().isTakenBack(record.allocation, record.generation);
  }

  std::shared_ptr<FakeProvider> provider_;
  std::unique_ptr<SharedSegment> arena_;
  SurvivingSide side_;
  Region region_;
  uint64_t ticket_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Routes, InvalidatedMemory, testing::Values("mapped", "cma", "ring", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

TEST_P(InvalidatedMemory, WhatAFrozenPeerMayWriteIsKept) {
  freezeInTheMiddle();
  // Without a limit: it returns as soon as only a silent peer is left to wait for.
  const Status kept = invalidateMemory(ticket_);
  EXPECT_EQ(kept.code(), Code::kPeerSilent) << kept.toString();
  EXPECT_NE(kept.message().find("quarantined"), std::string_view::npos) << kept.toString();
  EXPECT_EQ(metricOf(*side_.context, kQuarantined), 1);
  EXPECT_NE(side_.context->dump().find("quarantined"), std::string::npos) << side_.context->dump();
  EXPECT_EQ(region_.status().code(), Code::kRevoked);
  EXPECT_EQ(provider_->tickets().size(), 1u) << "its provider is not told that it is free";
  EXPECT_FALSE(isUnregistered()) << "its user has not done so";
  // Again, and with a limit.
  EXPECT_EQ(invalidateMemory(ticket_, 20ms).code(), Code::kPeerSilent);
  EXPECT_EQ(side_.context->unregister(region_, 20ms).code(), Code::kPeerSilent);
  EXPECT_TRUE(isUnregistered());
  EXPECT_EQ(provider_->tickets().size(), 1u);
  EXPECT_EQ(metricOf(*side_.context, kQuarantined), 1);
  EXPECT_NE(side_.context->dump().find("quarantined"), std::string::npos) << side_.context->dump();
  // Heard again, it lets go.
  side_.other->thaw();
  ASSERT_TRUE(soon([&] { return side_.peer.state() == "ready"; }));
  EXPECT_OK(invalidateMemory(ticket_, kSoon));
  EXPECT_OK(side_.context->unregister(region_, kSoon));
  EXPECT_TRUE(provider_->tickets().empty());
  EXPECT_EQ(metricOf(*side_.context, kQuarantined), 0);
  EXPECT_EQ(side_.other->line(), "ended Revoked");
}

TEST_P(InvalidatedMemory, APeerThatDiesLetsGo) {
  freezeInTheMiddle();
  auto call = std::async(std::launch::async, [&] {
    Status status;
    do status = invalidateMemory(ticket_, kSoon);
    while (status.code() == Code::kPeerSilent);
    return status;
  });
  ASSERT_TRUE(soon([&] { return metricOf(*side_.context, kQuarantined) == 1; }));
  side_.other->kill();
  EXPECT_OK(call.get());
  EXPECT_EQ(metricOf(*side_.context, kQuarantined), 0);
  EXPECT_EQ(region_.status().code(), Code::kRevoked);
  EXPECT_OK(side_.context->unregister(region_, kSoon));
  EXPECT_TRUE(provider_->tickets().empty());
}

// A code that it does not know would end the connection, or say something else.
TEST(InvalidatedForOthers, APeerOfAnEarlierVersionIsToldThatItIsClosed) {
  Config config;
  config.links = {"tcp"};
  for (const uint64_t features : {uint64_t{0}, feature::kAll}) {
    const auto context = MUST(Context::create({config, {"127.0.0.1:0"}, ""}));
    const auto provider = std::make_shared<FakeProvider>("arena");
    EXPECT_OK(context->addProvider(provider).status());
    std::vector<std::byte> heap(4096);
    provider->own(heap.data(), heap.size());
    const Region region =
        MUST(context->registerRegion(heap.data(), heap.size(), Access::kRemoteReadWrite));
    EXPECT_OK(invalidateMemory(provider->tickets().at(0), kSoon));
    Intruder holder(context->addresses().back());
    holder.enter(MUST(Secret::fromText(context->secretText())), features);
    holder.becomePeer();
    const Peer peer = MUST(context->accept(kSoon));
    const RegionReference reference = MUST(RegionReference::decode(region.share()));
    holder.say(control::ImportRequest{1, reference.allocation, reference.generation, 3, {"tcp"}});
    EXPECT_EQ(holder.hear<control::ImportReply>().code,
              features == 0 ? Code::kClosed : Code::kRevoked);
    EXPECT_EQ(peer.core()->toldAs(Code::kRevoked), features == 0 ? Code::kClosed : Code::kRevoked);
    EXPECT_OK(context->unregister(region, kSoon));
  }
}

}  // namespace
}  // namespace peerlane
