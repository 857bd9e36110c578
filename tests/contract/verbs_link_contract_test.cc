// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include <vector>

#include "tests/contract/verbs_pair.h"
#include "tests/fake/patterned_bytes.h"

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

// The owner's device enforces the rights, and a request that breaks them ends the pair: no
// OwnerLinkContract, whose owner looks at each piece of a list.
INSTANTIATE_TEST_SUITE_P(Verbs, LinkContract, testing::Values(kVerbs));
INSTANTIATE_TEST_SUITE_P(Verbs, AgentLinkContract, testing::Values(kVerbs));
INSTANTIATE_TEST_SUITE_P(Verbs, WireLinkContract, testing::Values(kVerbs));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OwnerLinkContract);

// The two sides make new pairs, each time.
class VerbsRefusal : public LinkContract {};
INSTANTIATE_TEST_SUITE_P(Verbs, VerbsRefusal, testing::Values(kVerbs));

TEST_P(VerbsRefusal, OfTheDeviceEndsItsWorkAndOthersGoOn) {
  constexpr size_t kBytes = 100'000;
  Exported there = exportMemory(1, kBytes);
  Exported here = exportMemory(0, kBytes);
  RemoteMemory wrong = there.remote;
  wrong.linkKey ^= uint64_t{0x10} << 32;  // a key that was never given
  std::vector<std::byte> source(kBytes), back(kBytes);
  for (uint64_t round = 1; round <= 10; ++round) {
    fillPattern(source, round);
    Poster guilty(*pair_, 0), good(*pair_, 0), other(*pair_, 1);
    guilty.put({{source.data(), &wrong, 0, kBytes}});
    guilty.serve();
    good.put({{source.data(), &there.remote, 0, kBytes - 8}});
    good.store(there.remote, kBytes - 8, round);
    EXPECT_EQ(settle(guilty), Code::kPermissionDenied);
    ASSERT_EQ(settle(good), Code::kOk) << pair_->link(0).health().toString();
    ASSERT_EQ(firstWrong(there.bytes().first(kBytes - 8), round), kBytes - 8);
    ASSERT_EQ(word(there, kBytes - 8), round);
    other.get({{back.data(), &here.remote, 0, kBytes}});
    finish(other);
  }
}

}  // namespace
}  // namespace peerlane
