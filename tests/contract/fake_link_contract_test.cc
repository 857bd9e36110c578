// SPDX-License-Identifier: Apache-2.0
#include "tests/contract/fake_pair.h"

namespace peerlane {
namespace {

// The wire moves 1 to 5000 bytes a call: frames break everywhere.
const MakeLinkPair kAgent = [] {
  auto wire = std::make_unique<FakeWire>(11);
  wire->setPartial(5000);
  return std::make_unique<FakePair>(wire->end(0), wire->end(1));
};
const MakeLinkPair kFakeMapped = [] {
  FakeWire wire(12);
  return std::make_unique<FakePair>(wire.end(0), wire.end(1), FakeLinkOptions{.mapped = true});
};

INSTANTIATE_TEST_SUITE_P(Fake, LinkContract, testing::Values(kAgent));
INSTANTIATE_TEST_SUITE_P(Fake, AgentLinkContract, testing::Values(kAgent));
INSTANTIATE_TEST_SUITE_P(Fake, OwnerLinkContract, testing::Values(kAgent));
INSTANTIATE_TEST_SUITE_P(Fake, WireLinkContract, testing::Values(kAgent));
INSTANTIATE_TEST_SUITE_P(FakeMapped, LinkContract, testing::Values(kFakeMapped));

}  // namespace
}  // namespace peerlane
