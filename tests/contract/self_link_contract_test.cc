// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/self/self_transport.h"
#include "tests/contract/transport_pair.h"

namespace peerlane {
namespace {

const MakeLinkPair kSelf = [] {
  return std::make_unique<TransportPair>(makeSelfTransport, Config(), false);
};

INSTANTIATE_TEST_SUITE_P(Self, LinkContract, testing::Values(kSelf));

}  // namespace
}  // namespace peerlane
