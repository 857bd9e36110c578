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

}  // namespace
}  // namespace peerlane
