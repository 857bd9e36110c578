// SPDX-License-Identifier: Apache-2.0
//
// FakePair: two fake links over any two pipes that are joined, for the contract suite.
#pragma once

#include <memory>
#include <utility>

#include "tests/contract/link_contract.h"
#include "tests/fake/fake_link.h"
#include "tests/fake/fake_wire.h"

namespace peerlane {

class FakePair final : public LinkPair {
 public:
  // `keep` lives longer than the pipes: the memory they share, say.
  FakePair(std::unique_ptr<FramePipe> a, std::unique_ptr<FramePipe> b,
           const FakeLinkOptions& options = {}, std::shared_ptr<void> keep = nullptr)
      : keep_(std::move(keep)),
        links_{std::make_unique<FakeLink>("side 0", std::move(a), regions_[0], nullptr, options,
                                          keys_),
               std::make_unique<FakeLink>("side 1", std::move(b), regions_[1], nullptr, options,
                                          keys_)} {}

  Link& link(int side) override { return *links_[side]; }
  FakeRegions& regions(int side) override { return regions_[side]; }
  void kill() override { links_[1].reset(); }

 private:
  const std::shared_ptr<void> keep_;
  const std::shared_ptr<FakeKeys> keys_ = std::make_shared<FakeKeys>();
  FakeRegions regions_[2];
  std::unique_ptr<FakeLink> links_[2];
};

}  // namespace peerlane
