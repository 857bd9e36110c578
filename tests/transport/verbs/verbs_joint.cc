// SPDX-License-Identifier: Apache-2.0
#include "tests/transport/verbs/verbs_joint.h"

#include <chrono>
#include <string>
#include <utility>

#include "tests/core/expect_ok.h"

namespace peerlane {

VerbsJoint::VerbsJoint(VerbsSide& a, VerbsSide& b, const JointOptions& options) : sides_{&a, &b} {
  std::vector<Half> halves;
  for (int i : {0, 1}) {
    halves.push_back(begin(*sides_[i], options));
    pairs_[i] = sides_[i]->lastPair();
    numbers_[i] = halves[i].offer.pair;
  }
  const GidPair gids = MUST(agreeOnGids(halves[0].offer, halves[1].offer));
  const verbs::Gid ends[2] = {gids.dialler, gids.listener};
  for (int i : {0, 1})
    EXPECT_OK(
        halves[i].pair->connect(halves[1 - i].offer, ends[i], ends[1 - i], sides_[i]->config));
  if (options.pairs != 0) lines_ = joinedLines(a.surroundings().loop, b.surroundings().loop);
  for (int i : {0, 1})
    links_[i] = complete(i, halves[i], {halves[1 - i].offer, ends[i], ends[1 - i]}, options);
}

VerbsJoint::Half VerbsJoint::begin(VerbsSide& side, const JointOptions& options) {
  VerbsNic& nic = *side.nic();
  Half half{.pair = MUST(QueuePair::create(nic.domain(), nic.queues().completions(),
                                           nic.queues().receives())),
            .control = MUST(nic.controls().take()),
            .receives = 0,
            .offer = {}};
  half.receives = MUST(nic.queues().reserve(half.pair->limits().requests));
  if (options.window != 0) {
    nic.queues().giveBack(0, half.receives - options.window);
    half.receives = options.window;
  }
  half.offer.device = nic.device().name();
  half.offer.isEthernet = nic.device().isEthernet();
  half.offer.mtu = static_cast<uint8_t>(nic.device().portState().active_mtu);
  half.offer.mostReads = half.pair->mostReads();
  half.offer.pair = half.pair->number();
  half.offer.firstPacket = half.pair->firstPacket();
  half.offer.receives = half.receives;
  half.offer.control = half.control.address();
  half.offer.controlKey = half.control.remote();
  half.offer.gids = MUST(nic.device().gids());
  return half;
}

std::unique_ptr<Link> VerbsJoint::complete(int side, Half& own, const PairWay& way,
                                           const JointOptions& options) {
  VerbsSide& at = *sides_[side];
  const VerbsOffer& theirs = way.peer;
  const VerbsAgreement agreed{.ordersWrites = options.ordersWrites,
                              .adds = options.adds,
                              .newsToPeer = theirs.receives,
                              .packetBytes = options.packetBytes,
                              .control = theirs.control,
                              .controlKey = theirs.controlKey};
  const std::string name = "side " + std::to_string(side);
  VerbsAgent::Surroundings around{
      at.nic()->queues(), at.nic()->keys(), at.nic()->bounces(), at.regions(), {}};
  std::unique_ptr<PairRounds> rounds;
  if (lines_[side]) {
    rounds = std::make_unique<PairRounds>(name, at.nic(), lines_[side], at.config,
                                          at.surroundings().loop, way, options.pairs);
    if (options.pairs > 1) around.wantPairs = [known = rounds.get()] { known->wantMore(); };
    around.pairFailed = [known = rounds.get()] { known->failed(); };
  }
  auto agent = std::make_unique<VerbsAgent>(name, around, std::move(own.pair),
                                            std::move(own.control), own.receives, agreed);
  agents_[side] = agent.get();
  return std::make_unique<VerbsLink>(at.nic(), std::move(rounds), std::move(agent), "a test",
                                     /*peerMails=*/true);
}

RemoteMemory VerbsJoint::attach(int owner, const VerbsSide::Memory& memory) {
  Grant grant;
  grant.region = memory.grant;
  grant.own = MUST(link(owner).grant(*memory.record));
  return MUST(link(1 - owner).attach(std::move(grant)));
}

bool VerbsJoint::until(const std::function<bool()>& done, const std::vector<Poster*>& posters,
                       const std::vector<int>& turned) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (uint64_t turns = 1; !done(); ++turns) {
    for (Poster* poster : posters) poster->serve();
    for (const int side : turned)
      if (links_[side]) run(side);
    if (turns % 1024 == 0 && std::chrono::steady_clock::now() > deadline) return false;
  }
  return true;
}

Code VerbsJoint::settle(Poster& poster, const std::vector<int>& turned) {
  EXPECT_TRUE(until([&] { return poster.idle(); }, {&poster}, turned))
      << "not done within a minute: " << links_[0]->health().toString();
  return poster.idle() ? poster.takeCode() : Code::kTimeout;
}

}  // namespace peerlane
