// SPDX-License-Identifier: Apache-2.0
#include "tests/contract/tcp_pair.h"

namespace peerlane {
namespace {

const MakeLinkPair kTcp = [] { return std::make_unique<TcpPair>(); };

INSTANTIATE_TEST_SUITE_P(Tcp, LinkContract, testing::Values(kTcp));
INSTANTIATE_TEST_SUITE_P(Tcp, AgentLinkContract, testing::Values(kTcp));
INSTANTIATE_TEST_SUITE_P(Tcp, OwnerLinkContract, testing::Values(kTcp));
INSTANTIATE_TEST_SUITE_P(Tcp, WireLinkContract, testing::Values(kTcp));

const MakeLinkPair kSealed = [] { return std::make_unique<TcpPair>(/*encrypted=*/true); };

INSTANTIATE_TEST_SUITE_P(TcpEncrypted, LinkContract, testing::Values(kSealed));
INSTANTIATE_TEST_SUITE_P(TcpEncrypted, AgentLinkContract, testing::Values(kSealed));
INSTANTIATE_TEST_SUITE_P(TcpEncrypted, OwnerLinkContract, testing::Values(kSealed));
INSTANTIATE_TEST_SUITE_P(TcpEncrypted, WireLinkContract, testing::Values(kSealed));

const MakeLinkPair kStriped = [] {
  return std::make_unique<TcpPair>(/*encrypted=*/false, /*sockets=*/3, /*helpers=*/2);
};

INSTANTIATE_TEST_SUITE_P(TcpStriped, LinkContract, testing::Values(kStriped));
INSTANTIATE_TEST_SUITE_P(TcpStriped, AgentLinkContract, testing::Values(kStriped));
INSTANTIATE_TEST_SUITE_P(TcpStriped, OwnerLinkContract, testing::Values(kStriped));
INSTANTIATE_TEST_SUITE_P(TcpStriped, WireLinkContract, testing::Values(kStriped));

}  // namespace
}  // namespace peerlane
