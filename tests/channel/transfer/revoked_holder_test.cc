// SPDX-License-Identifier: Apache-2.0
//
// Memory that its provider takes back while a message or a port waits with it, for a peer that has
// nothing to say: the call returns all the same, and what waited ends Revoked.
#include <optional>
#include <thread>

#include "peerlane/channel/message/host/message_lane.h"
#include "peerlane/memory/region_table.h"
#include "tests/channel/communicator/communicator_pair.h"
#include "tests/channel/port/port_pair.h"
#include "tests/fake/fake_provider.h"

namespace peerlane {
namespace {

constexpr size_t kBytes = 64 << 10;
constexpr port::ThisThread kThread;

// Of context a.
struct Arena {
  Arena(Context& context, bool isShared)
      : provider(std::make_shared<FakeProvider>("arena")),
        segment(MUST(SharedSegment::create(kBytes, {}))) {
    EXPECT_OK(context.addProvider(provider).status());
    provider->own(segment->data(), kBytes, isShared ? segment.get() : nullptr);
    region = MUST(context.registerRegion(segment->data(), kBytes, Access::kRemoteReadWrite));
    ticket = provider->tickets().at(0);
  }
  std::shared_ptr<FakeProvider> provider;
  std::unique_ptr<SharedSegment> segment;
  Region region;
  uint64_t ticket = 0;
};

class RevokedMessage : public testing::TestWithParam<RouteCase> {
 protected:
  RevokedMessage() : pair_(GetParam()), arena_(*pair_.contexts.a, GetParam().shared) {}
  CommunicatorPair pair_;
  Arena arena_;
};
INSTANTIATE_TEST_SUITE_P(Routes, RevokedMessage, everyRoute(), routeName);

TEST_P(RevokedMessage, PostedReceivesEndAndTheLaneGoesOn) {
  Context& a = *pair_.contexts.a;
  Context& b = *pair_.contexts.b;
  TestMemory own(a, 2 * kBytes, GetParam().shared),
      theirs(b, 2 * kBytes, GetParam().shared, Access::kRemoteReadWrite, 2);
  // More than a lane has under way at once, so that some wait in its queue.
  constexpr size_t kReceives = LaneEnd::kSlots + 5;
  std::vector<Transfer> received;
  for (size_t i = 0; i < kReceives; ++i)
    received.push_back(MUST(pair_.zero->recv(1, arena_.region, 64 * i, 64)));
  const Transfer other = MUST(pair_.zero->recv(1, own.region(), 0, 2000));
  EXPECT_OK(invalidateMemory(arena_.ticket, kSoon));
  for (const Transfer& each : received)
    ASSERT_EQ(each.wait(kSoon).code(), Code::kRevoked) << each.status().toString();
  EXPECT_FALSE(other.done());
  // Their numbers stay taken: their senders are told, and the next message is the next receive's.
  for (size_t i = 0; i < kReceives; ++i) {
    const Code code = endOf(pair_.one->send(0, theirs.region(), 0, 64));
    EXPECT_TRUE(code == Code::kCancelled || code == Code::kRevoked) << codeName(code);
  }
  EXPECT_OK(MUST(pair_.one->send(0, theirs.region(), 0, 2000)).wait(kSoon));
  EXPECT_OK(other.wait(kSoon));
  std::memcpy(own.shadow(), theirs.data(), 2000);
  EXPECT_TRUE(own.isAsExpected());
  EXPECT_EQ(pair_.zero->recv(1, arena_.region, 0, 64).status().code(), Code::kRevoked);
  EXPECT_OK(a.unregister(arena_.region, kSoon));
}

// Nobody has posted a receive for it.
TEST_P(RevokedMessage, APostedSendEnds) {
  Context& b = *pair_.contexts.b;
  TestMemory theirs(b, kBytes, GetParam().shared);
  for (const Protocol protocol : {Protocol::kGet, Protocol::kPut, Protocol::kRing}) {
    MessageOptions options;
    options.protocol = protocol;
    const Transfer sent = MUST(pair_.zero->send(1, arena_.region, 0, kBytes, options));
    const uint64_t ticket = arena_.provider->tickets().at(0);
    EXPECT_OK(invalidateMemory(ticket, kSoon));
    const Status ended = sent.wait(kSoon);
    EXPECT_EQ(ended.code(), Code::kRevoked) << ended.toString();
    EXPECT_EQ(endOf(pair_.one->recv(0, theirs.region(), 0, kBytes)), Code::kCancelled);
    EXPECT_OK(pair_.contexts.a->unregister(arena_.region, kSoon));
    arena_.region = MUST(
        pair_.contexts.a->registerRegion(arena_.segment->data(), kBytes, Access::kRemoteReadWrite));
  }
  EXPECT_TRUE(theirs.isAsExpected());
  EXPECT_OK(pair_.contexts.a->unregister(arena_.region, kSoon));
}

class RevokedPort : public PortRouteTest {};
INSTANTIATE_TEST_SUITE_P(Routes, RevokedPort, everyRoute(), routeName);

TEST_P(RevokedPort, TheServiceLetsGoAndItsChannelsEnd) {
  ASSERT_OK(open(4096));
  Arena arena(*pair_.a, GetParam().shared);
  const MemoryId memory = MUST(a().service->addMemory(arena.region));
  // A channel over the memory, and one that does not use it.
  const auto [here, there] = ports_.link(9);
  const PortChannel over = MUST(a().service->channel(here.semaphore(), a().remote, memory));
  ASSERT_OK(over.put(0, 0, 64));
  ASSERT_OK(over.flush(kSoon));
  std::thread waiter([handle = over.deviceHandle()] {
    EXPECT_EQ(handle.wait(kThread, 1, kSoonNs).outcome, PortOutcome::kEnded);
  });
  EXPECT_OK(invalidateMemory(arena.ticket, kSoon));
  waiter.join();
  EXPECT_EQ(over.status().code(), Code::kRevoked) << over.status().toString();
  EXPECT_EQ(over.put(0, 0, 64).code(), Code::kRevoked);
  EXPECT_EQ(a().service->channel(a().semaphore, a().remote, memory).status().code(),
            Code::kRevoked);
  // The other one goes on.
  ASSERT_OK(a().channel.put(0, 0, 64));
  ASSERT_OK(a().channel.flush(kSoon));
  EXPECT_OK(a().channel.status());
  EXPECT_OK(pair_.a->unregister(arena.region, kSoon));
  EXPECT_TRUE(arena.provider->tickets().empty());
  EXPECT_OK(a().service->removeMemory(memory, kSoon)) << "once more it lets go of nothing";
}

}  // namespace
}  // namespace peerlane
