// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/shm/shm_transport.h"
#include "tests/contract/transport_pair.h"

namespace peerlane {
namespace {

MakeLinkPair shmPair(ShmEngine engine, bool shared) {
  Config config;
  config.shmEngine = engine;
  return [=] { return std::make_unique<TransportPair>(makeShmTransport, config, shared); };
}
const auto kMapped = testing::Values(shmPair(ShmEngine::kMapped, true));
const auto kCma = testing::Values(shmPair(ShmEngine::kCma, false));
const auto kStaged = testing::Values(shmPair(ShmEngine::kRing, false));

INSTANTIATE_TEST_SUITE_P(ShmMapped, LinkContract, kMapped);
INSTANTIATE_TEST_SUITE_P(ShmCma, LinkContract, kCma);
INSTANTIATE_TEST_SUITE_P(ShmCma, AgentLinkContract, kCma);
INSTANTIATE_TEST_SUITE_P(ShmRing, LinkContract, kStaged);
INSTANTIATE_TEST_SUITE_P(ShmRing, AgentLinkContract, kStaged);
INSTANTIATE_TEST_SUITE_P(ShmRing, OwnerLinkContract, kStaged);
INSTANTIATE_TEST_SUITE_P(ShmRing, WireLinkContract, kStaged);

// Words need loads and stores, so the slab, which comes first, is mapped with every engine; what
// comes later is not, whether or not the slab is still there.
TEST(ShmLink, MapsOnlyTheSlabWhereTheRingIsAskedFor) {
  Config config;
  config.shmEngine = ShmEngine::kRing;
  TransportPair pair(makeShmTransport, config, true);
  std::vector<LinkMemory> owned;
  const auto attached = [&] {
    LinkMemory& memory = owned.emplace_back(pair.allocate(1, 4096));
    RegionGrant region;
    region.allocation = owned.size();
    region.bytes = memory.bytes.size();
    region.kind = memory.kind;
    region.access = Access::kRemoteReadWrite;
    RegionRecord record;
    fillRecord(memory, region, record);
    Grant grant{region, pair.link(1).grant(record).value()};
    return pair.link(0).attach(std::move(grant)).value();
  };
  RemoteMemory slab = attached();
  EXPECT_STREQ(slab.engine, "mapped");
  ASSERT_NE(slab.mapped, nullptr);
  RemoteMemory payload = attached();
  EXPECT_STREQ(payload.engine, "ring");
  EXPECT_EQ(payload.mapped, nullptr);
  pair.link(0).detach(payload);
  pair.link(0).detach(slab);
  RemoteMemory late = attached();
  EXPECT_STREQ(late.engine, "ring");
  EXPECT_EQ(late.mapped, nullptr);
  pair.link(0).detach(late);
}

}  // namespace
}  // namespace peerlane
