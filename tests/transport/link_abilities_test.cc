// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/link_abilities.h"

#include <gtest/gtest.h>

#include "peerlane/transport/cuda_ipc/cuda_part.h"
#include "peerlane/transport/host_part.h"
#include "tests/core/expect_ok.h"

namespace peerlane {
namespace {

constexpr AbilitySet kReach{Ability::kAttaches, Ability::kMaps};

TEST(LinkAbilities, AreOfOnePlaceAndExport) {
  LinkAbilities abilities;
  abilities.allow(MemoryPlace::kCuda, {MemoryExport::kPool, MemoryExport::kDescriptor}, kReach,
                  Enforcer::kOwner);
  EXPECT_TRUE(abilities.can(MemoryKind::kCudaPool, Ability::kMaps));
  EXPECT_TRUE(abilities.can(MemoryKind::kCudaChunks, Ability::kMaps)) << "whatever the shape";
  EXPECT_FALSE(abilities.can(MemoryKind::kCudaPool, Ability::kByAgent));
  EXPECT_FALSE(abilities.can(MemoryKind::kCudaHandle, Ability::kMaps));
  EXPECT_FALSE(abilities.can(MemoryKind::kShared, Ability::kMaps));
  EXPECT_EQ(abilities.enforcer(MemoryKind::kCudaPool), Enforcer::kOwner);
  EXPECT_EQ(abilities.enforcer(MemoryKind::kShared), Enforcer::kInitiator);
  EXPECT_TRUE(abilities.canAny(MemoryPlace::kCuda, Ability::kAttaches));
  EXPECT_FALSE(abilities.canAny(MemoryPlace::kHost, Ability::kAttaches));
}

TEST(LinkAbilities, AreTakenAwayForAReason) {
  LinkAbilities abilities;
  abilities.allow(MemoryPlace::kHost, allExports(), kReach, Enforcer::kInitiator);
  abilities.refuse(MemoryPlace::kHost, MemoryExport::kNone, {Ability::kMaps}, "it is private");
  EXPECT_FALSE(abilities.can(MemoryKind::kPrivate, Ability::kMaps));
  EXPECT_TRUE(abilities.can(MemoryKind::kPrivate, Ability::kAttaches));
  EXPECT_EQ(abilities.whyNot(MemoryKind::kPrivate), "it is private");
  EXPECT_EQ(abilities.whyNot(MemoryKind::kShared), "");
}

TEST(LinkAbilities, AreCoveredByWhatAttachesAsMuch) {
  LinkAbilities host;
  host.allow(MemoryPlace::kHost, allExports(), kReach, Enforcer::kInitiator);
  LinkAbilities shared;
  shared.allow(MemoryPlace::kHost, {MemoryExport::kDescriptor}, {Ability::kAttaches},
               Enforcer::kOwner);
  LinkAbilities cuda;
  cuda.allow(MemoryPlace::kCuda, {MemoryExport::kDescriptor}, kReach, Enforcer::kInitiator);
  EXPECT_TRUE(shared.areCoveredBy(host));
  EXPECT_FALSE(host.areCoveredBy(shared));
  EXPECT_FALSE(cuda.areCoveredBy(host));
  LinkAbilities both = host;
  both.add(cuda);
  EXPECT_TRUE(cuda.areCoveredBy(both));
  EXPECT_TRUE(LinkAbilities().areCoveredBy(shared));
}

TEST(GrantPart, OfTheHostComesBack) {
  const HostPart part{.address = 0x7f0000001000, .fileOffset = 4096};
  const HostPart back = MUST(HostPart::decode(part.encode()));
  EXPECT_EQ(back.address, part.address);
  EXPECT_EQ(back.fileOffset, part.fileOffset);
  for (const size_t length : {size_t{0}, size_t{15}, size_t{17}}) {
    std::vector<std::byte> other = part.encode();
    other.resize(length);
    EXPECT_EQ(HostPart::decode(other).status().code(), Code::kCorrupt) << length;
  }
}

TEST(GrantPart, OfCudaComesBack) {
  const CudaPart part{.address = 1,
                      .offset = 2,
                      .backingBytes = 3,
                      .identity = 4,
                      .isKept = true,
                      .handle = std::vector<std::byte>(CudaPart::kMostHandleBytes, std::byte{5})};
  const std::vector<std::byte> blob = part.encode();
  const CudaPart back = MUST(CudaPart::decode(blob));
  EXPECT_EQ(back.address, 1u);
  EXPECT_EQ(back.offset, 2u);
  EXPECT_EQ(back.backingBytes, 3u);
  EXPECT_EQ(back.identity, 4u);
  EXPECT_TRUE(back.isKept);
  EXPECT_EQ(back.handle, part.handle);
  for (const size_t length : {size_t{0}, blob.size() - 1, blob.size() + 1}) {
    std::vector<std::byte> other = blob;
    other.resize(length);
    EXPECT_EQ(CudaPart::decode(other).status().code(), Code::kCorrupt) << length;
  }
  std::vector<std::byte> odd = blob;
  odd[32] = std::byte{2};
  const Status refused = CudaPart::decode(odd).status();
  EXPECT_NE(refused.message().find("kept 2; expected 0 or 1"), std::string_view::npos)
      << refused.toString();
}

}  // namespace
}  // namespace peerlane
