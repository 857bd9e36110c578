// SPDX-License-Identifier: Apache-2.0
//
// How many requests, posts and completions a transfer over a NIC takes: what the layout of its
// memory demands, counted by the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/core/expect_ok.h"
#include "tests/fake/patterned_bytes.h"
#include "tests/transport/verbs/verbs_joint.h"

namespace peerlane {
namespace {

constexpr uint64_t kPage = 4096;

class VerbsCounts : public testing::Test {
 protected:
  // Nothing that the peer does meanwhile counts.
  SoftwareHcaCounts countsOf(Poster& poster) {
    sides_[0].resetCounts();
    EXPECT_EQ(joint_.settle(poster), Code::kOk);
    return sides_[0].counts();
  }
  // Pages of a scattered side and of one that lies in one piece.
  static std::vector<Piece> pages(const VerbsSide::Memory& local, const RemoteMemory& remote,
                                  uint64_t count, uint64_t localStride, uint64_t remoteStride) {
    std::vector<Piece> pieces;
    for (uint64_t i = 0; i < count; ++i)
      pieces.push_back({local.bytes.data() + i * localStride, &remote, i * remoteStride, kPage});
    return pieces;
  }
  uint32_t mostPieces() {
    ibv_qp_attr attr{};
    ibv_qp_init_attr made{};
    const auto& library = sides_[0].nic()->device().library();
    EXPECT_EQ(library.ibv_query_qp(joint_.pair(0), &attr, IBV_QP_CAP, &made), 0);
    return made.cap.max_send_sge;
  }

  VerbsSide sides_[2];
  VerbsJoint joint_{sides_[0], sides_[1]};
};

TEST_F(VerbsCounts, PagesThatLieInOnePieceAtThePeerShareRequests) {
  constexpr uint64_t kCount = 16384;
  const auto local = sides_[0].memory(2 * kCount * kPage);
  const auto there = sides_[1].memory(kCount * kPage);
  const RemoteMemory remote = joint_.attach(1, there);
  for (uint64_t i = 0; i < kCount; ++i) fillPattern(local.bytes.subspan(2 * i * kPage, kPage), i);
  for (const bool isPut : {true, false}) {
    Poster poster(joint_, 0);
    const auto pieces = pages(local, remote, kCount, 2 * kPage, kPage);
    isPut ? poster.put(pieces) : poster.get(pieces);
    const SoftwareHcaCounts counts = countsOf(poster);
    EXPECT_LE(counts.requests, kCount / mostPieces() + 64);
    EXPECT_EQ(isPut ? counts.writeBytes : counts.readBytes, kCount * kPage);
    EXPECT_EQ(isPut ? counts.writes : counts.reads, counts.requests);
    EXPECT_EQ(counts.inlined, 0u);
    // One of 32, and the last.
    EXPECT_EQ(counts.signalled, counts.requests / 32 + (counts.requests % 32 != 0 ? 1 : 0));
    RecordProperty(isPut ? "put" : "get", static_cast<int>(counts.requests));
    for (uint64_t i = 0; i < kCount; ++i)
      ASSERT_EQ(firstWrong(there.bytes.subspan(i * kPage, kPage), i), kPage) << i;
    for (uint64_t i = 0; i < kCount; ++i)
      ASSERT_EQ(firstWrong(local.bytes.subspan(2 * i * kPage, kPage), i), kPage) << i;
    std::fill(local.bytes.begin(), local.bytes.end(), std::byte{0});  // the get brings it back
  }
}

TEST_F(VerbsCounts, PiecesThatGoOnBothSidesAreOne) {
  const auto local = sides_[0].memory(64 * kPage);
  const auto there = sides_[1].memory(64 * kPage);
  const RemoteMemory remote = joint_.attach(1, there);
  Poster poster(joint_, 0);
  poster.put(pages(local, remote, 64, kPage, kPage));
  const SoftwareHcaCounts counts = countsOf(poster);
  EXPECT_EQ(counts.requests, 1u);
  EXPECT_EQ(counts.pieces, 1u);
  EXPECT_EQ(counts.writeBytes, 64 * kPage);
}

TEST_F(VerbsCounts, PagesScatteredAtThePeerTakeARequestEach) {
  const auto local = sides_[0].memory(64 * kPage);
  const auto there = sides_[1].memory(128 * kPage);
  const RemoteMemory remote = joint_.attach(1, there);
  Poster poster(joint_, 0);
  poster.put(pages(local, remote, 64, kPage, 2 * kPage));
  const SoftwareHcaCounts counts = countsOf(poster);
  EXPECT_EQ(counts.requests, 64u);
  EXPECT_EQ(counts.signalled, 2u);
}

TEST_F(VerbsCounts, AChainIsOnePost) {
  const auto local = sides_[0].memory(256 * kPage);
  const auto there = sides_[1].memory(512 * kPage);
  const RemoteMemory remote = joint_.attach(1, there);
  HcaControl::get().hold(sides_[0].device());
  Poster poster(joint_, 0);
  sides_[0].resetCounts();
  poster.put(pages(local, remote, 200, kPage, 2 * kPage));
  poster.serve();
  // The pair takes so many at a time, in chains of 32.
  SoftwareHcaCounts counts = sides_[0].counts();
  EXPECT_EQ(counts.requests, QueuePair::kRequests);
  EXPECT_EQ(counts.posts, QueuePair::kRequests / RequestChain::kRequests);
  EXPECT_EQ(counts.signalled, counts.posts);
  HcaControl::get().release(sides_[0].device());
  EXPECT_EQ(joint_.settle(poster), Code::kOk);
  counts = sides_[0].counts();
  EXPECT_EQ(counts.requests, 200u);
  EXPECT_LE(counts.posts, 8u);
}

TEST_F(VerbsCounts, APutAndItsSignalGoInOnePost) {
  const auto local = sides_[0].memory(kPage);
  const auto there = sides_[1].memory(kPage);
  const RemoteMemory remote = joint_.attach(1, there);
  for (const uint64_t bytes : {uint64_t{8}, uint64_t{1024}}) {
    Poster poster(joint_, 0);
    poster.put({{local.bytes.data(), &remote, 0, bytes}});
    poster.store(remote, 2048, 7);
    const SoftwareHcaCounts counts = countsOf(poster);
    EXPECT_EQ(counts.posts, 1u);
    EXPECT_EQ(counts.requests, 2u);
    EXPECT_EQ(counts.signalled, 1u);
    EXPECT_EQ(counts.writeBytes, bytes);
    EXPECT_EQ(counts.immediateWrites, 1u);
    EXPECT_EQ(counts.immediateWriteBytes, 8u);
    EXPECT_EQ(counts.inlined, bytes == 8 ? 2u : 1u);
  }
}

TEST_F(VerbsCounts, MemoryOfNoRegionGoesThroughSlots) {
  constexpr uint64_t kBytes = 5 * BounceSlots::kSlotBytes / 2;
  const auto local = sides_[0].memory(kBytes, /*isHeld=*/false);
  const auto there = sides_[1].memory(kBytes);
  const RemoteMemory remote = joint_.attach(1, there);
  fillPattern(local.bytes, 3);
  Poster poster(joint_, 0);
  poster.put({{local.bytes.data(), &remote, 0, kBytes}});
  SoftwareHcaCounts counts = countsOf(poster);
  EXPECT_EQ(firstWrong(there.bytes, 3), kBytes);
  EXPECT_EQ(counts.requests, 3u);
  EXPECT_EQ(counts.signalled, 3u);
  std::fill(local.bytes.begin(), local.bytes.end(), std::byte{0});
  poster.get({{local.bytes.data(), &remote, 0, kBytes}});
  counts = countsOf(poster);
  EXPECT_EQ(firstWrong(local.bytes, 3), kBytes);
  EXPECT_EQ(counts.reads, 3u);
  EXPECT_TRUE(sides_[0].areSlotsFree());
}

TEST_F(VerbsCounts, AnAdditionAndAFlushAreWhatTheyAre) {
  const auto there = sides_[1].memory(kPage);
  const RemoteMemory remote = joint_.attach(1, there);
  Poster poster(joint_, 0);
  poster.add64(remote, 8, 5);
  SoftwareHcaCounts counts = countsOf(poster);
  EXPECT_EQ(counts.atomics, 1u);
  EXPECT_EQ(counts.requests, 2u);
  EXPECT_EQ(counts.posts, 1u);
  poster.flush(remote);
  counts = countsOf(poster);
  EXPECT_EQ(counts.reads, 1u);
  EXPECT_EQ(counts.requests, 1u);
}

TEST_F(VerbsCounts, NewsIsConfirmedOnceForHalfOfIt) {
  const auto there = sides_[1].memory(kPage);
  const RemoteMemory remote = joint_.attach(1, there);
  sides_[1].resetCounts();
  for (int i = 0; i < 320; ++i) {
    Poster poster(joint_, 0);
    poster.store(remote, 0, 1);
    ASSERT_EQ(joint_.settle(poster), Code::kOk);
  }
  const SoftwareHcaCounts counts = sides_[1].counts();
  EXPECT_LE(counts.requests, 320u / 8 + 1);
  EXPECT_GE(counts.requests, 320u / 16);
}

}  // namespace
}  // namespace peerlane
