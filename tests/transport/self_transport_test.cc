// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/self/self_transport.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include "peerlane/program/model/bell.h"
#include "tests/fake/fake_regions.h"

namespace peerlane {
namespace {

class SelfTransport : public testing::Test {
 protected:
  std::unique_ptr<PendingLink> prepare(const Bell& bell) {
    PeerFacts facts;
    facts.sameProcess = true;
    return transport_->prepare(facts, {config_, *loop_, *readiness_, bell, regions_, [] {}})
        .value();
  }
  const Config config_;
  const std::unique_ptr<EventLoop> loop_ = EventLoop::create().value();
  const std::unique_ptr<ReadinessSet> readiness_ = ReadinessSet::create().value();
  FakeRegions regions_;
  const std::unique_ptr<Transport> transport_ = makeSelfTransport();
};

// A context may end while what it sent still lies in the socket of the other.
TEST_F(SelfTransport, AnOfferOutlivesItsContext) {
  const auto mine = Bell::create().value();
  auto theirs = Bell::create().value();
  const Fd theirEvent = duplicateFd(theirs->eventFd()).value();
  Offer offer = prepare(*theirs)->takeOffer();
  theirs.reset();
  auto link = prepare(*mine)->complete(std::move(offer));
  ASSERT_TRUE(link.isOk()) << link.status().toString();
  (*link)->traits().waker.ring();
  pollfd event{theirEvent.get(), POLLIN, 0};
  EXPECT_EQ(poll(&event, 1, 0), 1);
}

TEST_F(SelfTransport, AnOfferOfAnotherFormIsRefused) {
  const auto bell = Bell::create().value();
  Offer withBytes = prepare(*bell)->takeOffer();
  withBytes.blob.resize(8);
  EXPECT_EQ(prepare(*bell)->complete(std::move(withBytes)).status().code(), Code::kCorrupt);
  Offer withoutEvent = prepare(*bell)->takeOffer();
  withoutEvent.fds.pop_back();
  EXPECT_EQ(prepare(*bell)->complete(std::move(withoutEvent)).status().code(), Code::kCorrupt);
  EXPECT_FALSE(prepare(*bell)->complete(Offer()).isOk());
}

}  // namespace
}  // namespace peerlane
