// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "tests/contract/verbs_pair.h"

namespace peerlane {
namespace {

// The counters of the device must have grown by as much: in the guest somebody looks.
class SaysHowMuch final : public testing::Environment {
  void TearDown() override {
    std::printf("moved %llu bytes\n", static_cast<unsigned long long>(movedBytes()));
  }
};
const auto* const kSays = testing::AddGlobalTestEnvironment(new SaysHowMuch);

const MakeLinkPair kVerbs = [] { return std::make_unique<VerbsPair>(); };

// The owner's device enforces the rights, but a request that breaks them ends the pair: no
// OwnerLinkContract, whose links go on.
INSTANTIATE_TEST_SUITE_P(Verbs, LinkContract, testing::Values(kVerbs));
INSTANTIATE_TEST_SUITE_P(Verbs, AgentLinkContract, testing::Values(kVerbs));
INSTANTIATE_TEST_SUITE_P(Verbs, WireLinkContract, testing::Values(kVerbs));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OwnerLinkContract);

}  // namespace
}  // namespace peerlane
