// SPDX-License-Identifier: Apache-2.0
//
// VerbsJoint: two links joined to each other over the NICs of two sides, made by hand: what the
// sides agree on is the test's choice. Several may share the sides. One thread, unless the test
// turns the sides by threads of its own.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "peerlane/transport/verbs/verbs_link.h"
#include "tests/contract/joined_lines.h"
#include "tests/contract/link_contract.h"
#include "tests/transport/verbs/verbs_side.h"

namespace peerlane {

// What the sides agree on.
struct JointOptions {
  bool ordersWrites = true;
  bool adds = true;
  uint32_t window = 0;  // news under way; 0: as many as the side gives
  uint32_t pairs = 0;   // at most; 0: the sides have no line, so a pair that fails ends the link
  uint32_t packetBytes = 4096;
};

class VerbsJoint final : public LinkPair {
 public:
  VerbsJoint(VerbsSide& a, VerbsSide& b, const JointOptions& options = {});

  Link& link(int side) override { return *links_[side]; }
  FakeRegions& regions(int side) override { return sides_[side]->regions(); }
  void turn(int side) override { sides_[side]->turn(); }
  void kill() override { links_[1].reset(); }

  VerbsSide& side(int side) { return *sides_[side]; }
  ibv_qp* pair(int side) const { return pairs_[side]; }
  uint32_t number(int side) const { return numbers_[side]; }
  VerbsAgent& agent(int side) { return *agents_[side]; }

  // How side 1 - `owner` reaches memory of `owner`.
  RemoteMemory attach(int owner, const VerbsSide::Memory& memory);

  // A turn of a side: what its progress thread does.
  void run(int side) {
    turn(side);
    (void)link(side).poll();
  }
  // Turns the sides in `turned`, and serves the posters, until `done`. False: not within a minute.
  bool until(const std::function<bool()>& done, const std::vector<Poster*>& posters = {},
             const std::vector<int>& turned = {0, 1});
  // The code of the poster's entries when they have ended.
  Code settle(Poster& poster, const std::vector<int>& turned = {0, 1});

 private:
  struct Half {
    std::unique_ptr<QueuePair> pair;
    ControlBlock control;
    uint32_t receives = 0;
    VerbsOffer offer;
  };
  static Half begin(VerbsSide& side, const JointOptions& options);
  std::unique_ptr<Link> complete(int side, Half& own, const PairWay& way,
                                 const JointOptions& options);

  std::array<VerbsSide*, 2> sides_;
  std::array<std::shared_ptr<LinkLine>, 2> lines_;
  std::array<std::unique_ptr<Link>, 2> links_;
  std::array<VerbsAgent*, 2> agents_{};
  std::array<ibv_qp*, 2> pairs_{};
  std::array<uint32_t, 2> numbers_{};
};

}  // namespace peerlane
