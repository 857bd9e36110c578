// SPDX-License-Identifier: Apache-2.0
//
// VerbsPair: two contexts' worth of surroundings, joined by the verbs transport over the RDMA
// device that PEERLANE_IBV_SO and PEERLANE_IB_HCA name: a software one on any host, a kernel's in
// the guest. Where there is none, the test fails.
#pragma once

#include <array>
#include <chrono>
#include <memory>

#include "peerlane/transport/verbs/verbs_transport.h"
#include "tests/contract/joined_lines.h"
#include "tests/contract/link_contract.h"
#include "tests/core/soon.h"

namespace peerlane {

// As for a peer that becomes ready: each side's first request was answered.
inline void awaitFirstAnswers(const std::unique_ptr<Link> (&links)[2]) {
  EXPECT_TRUE(soon([&] {
    for (const auto& link : links) (void)link->poll();
    return links[0]->health().isOk() && links[1]->health().isOk();
  })) << links[0]->health().toString()
      << links[1]->health().toString();
}

class VerbsPair final : public LinkPair {
 public:
  explicit VerbsPair(std::chrono::nanoseconds peerTimeout = std::chrono::seconds(5)) {
    config_.peerTimeout = peerTimeout;
    PeerFacts facts[2];
    facts[0].initiator = true;
    std::unique_ptr<PendingLink> pending[2];
    Offer offers[2];
    for (int i : {0, 1}) {
      pending[i] = transports_[i]->prepare(facts[i], surroundings(i)).value();
      offers[i] = pending[i]->takeOffer();
    }
    for (int i : {0, 1}) links_[i] = pending[i]->complete(std::move(offers[1 - i])).value();
    awaitFirstAnswers(links_);
  }

  Link& link(int side) override { return *links_[side]; }
  FakeRegions& regions(int side) override { return regions_[side]; }
  void turn(int side) override {
    readiness_[side]->look();
    (void)loops_[side]->poll();
  }
  void kill() override { links_[1].reset(); }

 private:
  LinkSurroundings surroundings(int side) {
    LinkSurroundings around{config_,       *loops_[side],  *readiness_[side],
                            *bells_[side], regions_[side], {}};
    around.line = lines_[side];
    return around;
  }

  Config config_ = Config::fromEnvironment().value();
  FakeRegions regions_[2];
  std::unique_ptr<EventLoop> loops_[2] = {EventLoop::create().value(), EventLoop::create().value()};
  std::array<std::shared_ptr<LinkLine>, 2> lines_ = joinedLines(*loops_[0], *loops_[1]);
  std::unique_ptr<ReadinessSet> readiness_[2] = {ReadinessSet::create().value(),
                                                 ReadinessSet::create().value()};
  std::unique_ptr<Bell> bells_[2] = {Bell::create().value(), Bell::create().value()};
  std::unique_ptr<Transport> transports_[2] = {std::move(makeVerbsTransports({}).front()),
                                               std::move(makeVerbsTransports({}).front())};
  std::unique_ptr<Link> links_[2];
};

}  // namespace peerlane
