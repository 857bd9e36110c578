// SPDX-License-Identifier: Apache-2.0
//
// Whose pairs a key is good for: with one domain of the context all its peers', with one of each
// peer that peer's alone.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "peerlane/transport/verbs/verbs_transport.h"
#include "tests/contract/verbs_pair.h"
#include "tests/core/expect_ok.h"
#include "tests/core/quiet_log.h"
#include "tests/fake/patterned_bytes.h"
#include "tests/os/open_files.h"

namespace peerlane {
namespace {

constexpr uint64_t kBytes = 16384;

// What links of one context share.
struct Surrounded {
  explicit Surrounded(IbDomain domain) { config.ibDomain = domain; }
  LinkSurroundings surroundings() { return {config, *loop, *readiness, *bell, regions, {}}; }

  Config config = Config::fromEnvironment().value();
  FakeRegions regions;
  std::unique_ptr<EventLoop> loop = EventLoop::create().value();
  std::unique_ptr<ReadinessSet> readiness = ReadinessSet::create().value();
  std::unique_ptr<Bell> bell = Bell::create().value();
  std::unique_ptr<Transport> transport = std::move(makeVerbsTransports({}).front());
};

class Joined final : public LinkPair {
 public:
  Joined(Surrounded& a, Surrounded& b) : sides_{&a, &b} {
    std::unique_ptr<PendingLink> pending[2];
    Offer offers[2];
    for (int i : {0, 1}) {
      PeerFacts facts;
      facts.initiator = i == 0;
      pending[i] = MUST(sides_[i]->transport->prepare(facts, sides_[i]->surroundings()));
      offers[i] = pending[i]->takeOffer();
    }
    for (int i : {0, 1}) links_[i] = MUST(pending[i]->complete(std::move(offers[1 - i])));
    awaitFirstAnswers(links_);
  }

  Link& link(int side) override { return *links_[side]; }
  FakeRegions& regions(int side) override { return sides_[side]->regions; }
  void turn(int side) override {
    sides_[side]->readiness->look();
    (void)sides_[side]->loop->poll();
  }
  void kill() override { links_[1].reset(); }

 private:
  Surrounded* sides_[2];
  std::unique_ptr<Link> links_[2];
};

// An owner with two peers.
class VerbsDomains : public testing::TestWithParam<IbDomain> {
 protected:
  const QuietLog quiet_;

  std::shared_ptr<RegionRecord> region(std::vector<std::byte>& bytes) {
    const RegionGrant grant = owner_.regions.add(bytes, Access::kRemoteReadWrite);
    auto record = std::make_shared<RegionRecord>();
    record->allocation = grant.allocation;
    record->generation = grant.generation;
    record->base = bytes.data();
    record->bytes = bytes.size();
    record->access = grant.access;
    record->acquired = acquireHost(bytes);
    grant_ = grant;
    return record;
  }
  void sweep() {
    for (Surrounded* each : {&owner_, &a_, &b_}) each->transport->sweep();
  }
  // Puts over the link of one peer, with what was granted over another.
  Code put(Joined& by, const LinkPart& part) {
    Grant grant;
    grant.region = grant_;
    grant.own.blob = part.blob;
    const RemoteMemory remote = MUST(by.link(1).attach(std::move(grant)));
    Poster poster(by, 1);
    poster.put({{mine_.data(), &remote, 0, kBytes}});
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!poster.idle() && std::chrono::steady_clock::now() < until) {
      poster.serve();
      for (const int side : {0, 1}) {
        by.turn(side);
        (void)by.link(side).poll();
      }
    }
    return poster.idle() ? poster.takeCode() : Code::kTimeout;
  }

  std::vector<std::byte> mine_ = std::vector<std::byte>(kBytes);
  RegionGrant grant_;
  Surrounded owner_{GetParam()}, a_{GetParam()}, b_{GetParam()};
};

TEST_P(VerbsDomains, AKeyIsGoodForThePairsOfItsDomain) {
  Joined toA(owner_, a_), toB(owner_, b_);
  std::vector<std::byte> bytes(kBytes);
  const auto record = region(bytes);
  const LinkPart ofA = MUST(toA.link(0).grant(*record));
  fillPattern(mine_, 1);
  EXPECT_EQ(put(toA, ofA), Code::kOk);
  EXPECT_EQ(firstWrong(bytes, 1), kBytes);
  fillPattern(mine_, 2);
  const bool isShared = GetParam() == IbDomain::kContext;
  EXPECT_EQ(put(toB, ofA), isShared ? Code::kOk : Code::kPermissionDenied);
  EXPECT_EQ(firstWrong(bytes, isShared ? 2 : 1), kBytes);
  // A key of its own is another one, and works over its pair: a new one, if the last was refused.
  Joined again(owner_, b_);
  const LinkPart ofB = MUST(again.link(0).grant(*record));
  EXPECT_EQ(ofB.blob == ofA.blob, isShared);
  fillPattern(mine_, 3);
  EXPECT_EQ(put(again, ofB), Code::kOk);
  EXPECT_EQ(firstWrong(bytes, 3), kBytes);
  EXPECT_OK(toA.link(0).health());
}

TEST_P(VerbsDomains, WhatWasMadeForAPeerGoesWithIt) {
  std::vector<std::byte> bytes(kBytes);
  const auto record = region(bytes);
  {
    Joined(owner_, a_).kill();  // the fabric is opened once for the process
    sweep();
    const size_t before = MUST(openFileCount());
    {
      Joined toA(owner_, a_);
      EXPECT_OK(toA.link(0).grant(*record).status());
    }
    sweep();
    EXPECT_EQ(MUST(openFileCount()), before) << "the region keeps no device open";
  }
  Joined toB(owner_, b_);
  const LinkPart second = MUST(toB.link(0).grant(*record));
  fillPattern(mine_, 4);
  EXPECT_EQ(put(toB, second), Code::kOk);
  EXPECT_EQ(firstWrong(bytes, 4), kBytes);
}

INSTANTIATE_TEST_SUITE_P(Of, VerbsDomains, testing::Values(IbDomain::kContext, IbDomain::kPeer),
                         [](const auto& each) {
                           return each.param == IbDomain::kContext ? "context" : "peer";
                         });

}  // namespace
}  // namespace peerlane
