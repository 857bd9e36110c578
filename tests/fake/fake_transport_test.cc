// SPDX-License-Identifier: Apache-2.0
//
// The stand-ins do what they promise: a fault that does not happen would make other tests pass.
#include "tests/fake/fake_transport.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/fake/fake_regions.h"
#include "tests/fake/patterned_bytes.h"

namespace peerlane {
namespace {

class FakeWireTest : public testing::Test {
 protected:
  size_t write(size_t bytes) {
    std::vector<std::byte> data(bytes);
    fillPattern(data, 1);
    const IoSlice slice{data.data(), bytes};
    return a_->write({std::span(&slice, 1)}).value();
  }
  Result<size_t> read(size_t bytes) {
    std::vector<std::byte> data(bytes);
    const IoSlice slice{data.data(), bytes};
    return b_->read({std::span(&slice, 1)});
  }

  FakeWire wire_{5, 1000};
  std::unique_ptr<FramePipe> a_ = wire_.end(0);
  std::unique_ptr<FramePipe> b_ = wire_.end(1);
};

TEST_F(FakeWireTest, HoldsUpToItsCapacity) {
  EXPECT_EQ(write(1500), 1000u);
  EXPECT_FALSE(a_->writable());
  EXPECT_EQ(read(400).value(), 400u);
  EXPECT_TRUE(a_->writable());
  EXPECT_EQ(wire_.written(0), 1000u);
}

TEST_F(FakeWireTest, PartialProgressRepeatsBySeed) {
  std::vector<size_t> sizes[2];
  for (auto& list : sizes) {
    FakeWire wire(77);
    wire.setPartial(9);
    const auto pipe = wire.end(0);
    std::vector<std::byte> data(100);
    const IoSlice slice{data.data(), data.size()};
    for (int i = 0; i < 20; ++i) list.push_back(pipe->write({std::span(&slice, 1)}).value());
  }
  EXPECT_EQ(sizes[0], sizes[1]);
  EXPECT_NE(*std::min_element(sizes[0].begin(), sizes[0].end()),
            *std::max_element(sizes[0].begin(), sizes[0].end()));
  EXPECT_LE(*std::max_element(sizes[0].begin(), sizes[0].end()), 9u);
}

TEST_F(FakeWireTest, HeldBytesArriveWhenReleased) {
  wire_.hold(0);
  EXPECT_EQ(write(100), 100u);
  EXPECT_FALSE(b_->readable());
  EXPECT_EQ(read(100).value(), 0u);
  wire_.release(0, 30);
  EXPECT_EQ(read(100).value(), 30u);
  wire_.releaseAll(0);
  EXPECT_EQ(read(100).value(), 70u);
}

TEST_F(FakeWireTest, AFrozenSideDoesNothing) {
  wire_.freeze(1);
  EXPECT_EQ(write(100), 100u);
  EXPECT_FALSE(b_->readable());
  EXPECT_FALSE(b_->writable());
  EXPECT_EQ(read(100).value(), 0u);
  wire_.thaw(1);
  EXPECT_EQ(read(100).value(), 100u);
}

TEST_F(FakeWireTest, LossComesAfterTheBytesBeforeIt) {
  EXPECT_EQ(write(100), 100u);
  wire_.loseAfter(0, 40);
  EXPECT_EQ(read(100).value(), 40u);
  EXPECT_EQ(read(100).status().code(), Code::kPeerLost);
  const IoSlice nothing{};
  EXPECT_EQ(a_->write({std::span(&nothing, 1)}).status().code(), Code::kPeerLost);
}

TEST(FakeTransport, JoinsTwoSidesByTheirOffersAndRefusesOnCommand) {
  FakeNetwork network(1);
  FakeTransport good(network);
  FakeTransport bad(network, {}, Status(Code::kNotSupported, "not today"));
  const Config config;
  const auto loop = EventLoop::create().value();
  const auto bell = Bell::create().value();
  FakeRegions regions;
  const auto readiness = ReadinessSet::create().value();
  const LinkSurroundings surroundings{config, *loop, *readiness, *bell, regions, nullptr};
  EXPECT_EQ(bad.prepare({}, surroundings).status().code(), Code::kNotSupported);
  auto a = good.prepare({}, surroundings).value();
  auto b = good.prepare({}, surroundings).value();
  Offer offerA = a->takeOffer();
  Offer offerB = b->takeOffer();
  const auto linkB = b->complete(std::move(offerA)).value();
  const auto linkA = a->complete(std::move(offerB)).value();
  ASSERT_EQ(network.wires().size(), 1u);
  RemoteMemory nowhere;
  Mailbox mailbox(*linkA);
  MailboxEntry* entry = mailbox.claim();
  entry->verb = Verb::kFlush;
  entry->remote = &nowhere;
  mailbox.ring();
  mailbox.serve();
  (void)linkB->poll();
  (void)linkA->poll();
  EXPECT_TRUE(mailbox.idle());

  auto& fake = static_cast<FakeLink&>(*linkA);
  fake.setOptions({.refuseGrant = Status(Code::kNotSupported, "no grant"),
                   .refuseAttach = Status(Code::kUnavailable, "no attach")});
  EXPECT_EQ(fake.grant(RegionRecord()).status().code(), Code::kNotSupported);
  EXPECT_EQ(fake.attach({}).status().code(), Code::kUnavailable);
  EXPECT_EQ(fake.attached(), 0);
}

}  // namespace
}  // namespace peerlane
