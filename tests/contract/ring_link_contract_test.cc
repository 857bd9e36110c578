// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/shm_segment.h"
#include "peerlane/transport/shm/ring_pipe.h"
#include "tests/contract/fake_pair.h"

namespace peerlane {
namespace {

// Both directions in one segment, small enough that everything wraps and blocks often.
const MakeLinkPair kRing = [] {
  constexpr size_t kBytes = RingPipe::bytesFor(32 * 1024);
  std::shared_ptr<SharedSegment> segment = SharedSegment::create(2 * kBytes, {}).value();
  const std::span<std::byte> up(segment->data(), kBytes);
  const std::span<std::byte> down(segment->data() + kBytes, kBytes);
  auto side0 = RingPipe::create(up, down, Waker()).value();
  auto side1 = RingPipe::create(down, up, Waker()).value();
  return std::make_unique<FakePair>(std::move(side0), std::move(side1), FakeLinkOptions(), segment);
};

INSTANTIATE_TEST_SUITE_P(Ring, LinkContract, testing::Values(kRing));
INSTANTIATE_TEST_SUITE_P(Ring, AgentLinkContract, testing::Values(kRing));
INSTANTIATE_TEST_SUITE_P(Ring, OwnerLinkContract, testing::Values(kRing));
INSTANTIATE_TEST_SUITE_P(Ring, WireLinkContract, testing::Values(kRing));

}  // namespace
}  // namespace peerlane
