// SPDX-License-Identifier: Apache-2.0
#include "tests/contract/verbs_pair.h"

namespace peerlane {
namespace {

const MakeLinkPair kVerbs = [] { return std::make_unique<VerbsPair>(); };

// The owner's device enforces the rights, but a request that breaks them ends the pair: no
// OwnerLinkContract, whose links go on.
INSTANTIATE_TEST_SUITE_P(Verbs, LinkContract, testing::Values(kVerbs));
INSTANTIATE_TEST_SUITE_P(Verbs, AgentLinkContract, testing::Values(kVerbs));
INSTANTIATE_TEST_SUITE_P(Verbs, WireLinkContract, testing::Values(kVerbs));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OwnerLinkContract);

}  // namespace
}  // namespace peerlane
