// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "peerlane/os/mappings/nofault_copy.h"
#include "peerlane/os/shm_segment.h"
#include "peerlane/os/socket.h"
#include "peerlane/transport/shm/lending_pipe.h"
#include "tests/contract/fake_pair.h"

namespace peerlane {
namespace {

// What the two pipes share, and borrow.
struct LendingParts {
  static constexpr size_t kBytes = RingPipe::bytesFor(32 * 1024);
  std::shared_ptr<SharedSegment> segment = SharedSegment::create(2 * kBytes, {}).value();
  std::pair<Fd, Fd> sockets = socketPair().value();
  KnockLine lines[2] = {KnockLine(sockets.first.get()), KnockLine(sockets.second.get())};

  std::unique_ptr<LendingPipe> pipe(int side) {
    const std::span<std::byte> up(segment->data(), kBytes);
    const std::span<std::byte> down(segment->data() + kBytes, kBytes);
    auto ring = RingPipe::create(side == 0 ? up : down, side == 0 ? down : up, Waker()).value();
    return std::make_unique<LendingPipe>(std::move(ring), lines[side]);
  }
};

// Rings that are small enough that everything wraps and blocks often.
const MakeLinkPair kLending = [] {
  if (!prepareNofault().isOk()) std::abort();
  const auto parts = std::make_shared<LendingParts>();
  return std::make_unique<FakePair>(parts->pipe(0), parts->pipe(1), FakeLinkOptions(), parts);
};

INSTANTIATE_TEST_SUITE_P(Lending, LinkContract, testing::Values(kLending));
INSTANTIATE_TEST_SUITE_P(Lending, AgentLinkContract, testing::Values(kLending));
INSTANTIATE_TEST_SUITE_P(Lending, OwnerLinkContract, testing::Values(kLending));
INSTANTIATE_TEST_SUITE_P(Lending, WireLinkContract, testing::Values(kLending));

}  // namespace
}  // namespace peerlane
