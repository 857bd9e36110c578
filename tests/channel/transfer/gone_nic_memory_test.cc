// SPDX-License-Identifier: Apache-2.0
//
// Registered memory that its program loses while a NIC has its pages: the NIC keeps them, so
// transfers go on with what lay there, and nobody gets a signal. In guests alone (rxe): the HCA in
// software copies as the program would.
#include <cstring>

#include "tests/channel/context_pair.h"
#include "tests/os/file_memory.h"

namespace peerlane {
namespace {

class GoneNicMemory : public testing::TestWithParam<Loss> {};

TEST_P(GoneNicMemory, GoesOnWithThePagesOfTheNic) {
  constexpr size_t kBytes = FileMemory::kBytes;
  constexpr std::byte kFill{0x5a};
  ContextPair pair(configFor(kVerbs));
  TestMemory near(*pair.a, kBytes, false);
  TestMemory other(*pair.b, kBytes, false, Access::kRemoteReadWrite, 3);
  FileMemory file(kFill);
  const Region region = MUST(pair.b->registerRegion(file.data(), kBytes, Access::kRemoteReadWrite));
  const RemoteRegion remote = MUST(pair.toB.importRegion(region.share()));
  const auto move = [&](bool isPut, const RemoteRegion& at) {
    const Block block{&near.region(), 0, &at, 0, kBytes};
    return MUST(isPut ? put(pair.toB, {&block, 1}) : get(pair.toB, {&block, 1})).wait(kSoon);
  };
  ASSERT_OK(move(false, remote));
  file.lose(GetParam());
  std::memset(near.data(), 0, kBytes);
  EXPECT_OK(move(false, remote));
  EXPECT_EQ(countOf(near.data(), kBytes, kFill), kBytes);
  EXPECT_OK(move(true, remote));
  std::memcpy(near.data(), near.shadow(), kBytes);
  const RemoteRegion remoteOther = other.importedBy(pair.toB);
  EXPECT_OK(move(true, remoteOther));
  EXPECT_EQ(firstDifference(near.data(), other.data(), kBytes), kBytes);
  std::memcpy(other.shadow(), other.data(), kBytes);
  EXPECT_OK(pair.b->unregister(region, kSoon));
}

TEST_P(GoneNicMemory, GoesOnWhileBytesMove) {
  constexpr size_t kBytes = FileMemory::kBytes;
  constexpr int kRounds = 200;
  constexpr std::byte kFill{0x5a};
  ContextPair pair(configFor(kVerbs));
  TestMemory near(*pair.a, kBytes, false);
  for (int round = 0; round < kRounds && !HasFailure(); ++round) {
    FileMemory file(kFill);
    const Region region =
        MUST(pair.b->registerRegion(file.data(), kBytes, Access::kRemoteReadWrite));
    const RemoteRegion remote = MUST(pair.toB.importRegion(region.share()));
    ASSERT_OK(remote.prepare(kSoon));
    std::memset(near.data(), 0, kBytes);
    const Block block{&near.region(), 0, &remote, 0, kBytes};
    file.loseWhile(GetParam(), [&] { EXPECT_OK(MUST(get(pair.toB, {&block, 1})).wait(kSoon)); });
    EXPECT_EQ(countOf(near.data(), kBytes, kFill), kBytes);
    EXPECT_OK(pair.b->unregister(region, kSoon));
  }
  std::memcpy(near.data(), near.shadow(), kBytes);
}
INSTANTIATE_TEST_SUITE_P(Losses, GoneNicMemory,
                         testing::Values(Loss::kCut, Loss::kUnmapped, Loss::kProtected));

}  // namespace
}  // namespace peerlane
