// SPDX-License-Identifier: Apache-2.0
//
// Memory of Context::regionOf() that its program frees without a word, between two contexts over an
// RDMA device: nobody reads or writes the pages that it had.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "peerlane/os/mappings/free_watch.h"
#include "peerlane/peerlane.h"
#include "tests/channel/context_pair.h"
#include "tests/core/expect_ok.h"
#include "tests/fake/patterned_bytes.h"
#include "tests/os/quiet_place.h"

#if !defined(__SANITIZE_THREAD__)  // nothing is watched there (peerlane/os/mappings/free_watch.cc)

namespace peerlane {
namespace {

constexpr size_t kBytes = 256 * 1024;

class VerbsFrees : public testing::Test {
 protected:
  void SetUp() override {
    if (const Status probed = FreeWatch::probe(); !probed.isOk()) FAIL() << probed.toString();
    // Nobody else gets the place when it is free for a moment.
    outer_ = ::mmap(quietPlace(kBytes + 8192), kBytes + 8192, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(outer_, MAP_FAILED);
    at_ = static_cast<std::byte*>(outer_) + 4096;
    mapAnew();
    there_ = MUST(pair_.b->allocate(kBytes));
    thereFromA_ = MUST(pair_.toB.importRegion(there_.share()));
  }
  // Nobody else gets the place later: where pages were given back (madvise), nothing is watched for
  // a time.
  void TearDown() override {
    if (outer_ == nullptr) return;
    EXPECT_NE(::mmap(outer_, kBytes + 8192, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0),
              MAP_FAILED);
  }
  // Other memory, at the same place.
  void mapAnew() {
    ASSERT_EQ(
        ::mmap(at_, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
        at_);
  }
  std::span<std::byte> memory() const { return {at_, kBytes}; }
  // The memory, of a region that is asked for now, goes there and comes back.
  Region moves(uint64_t pattern) {
    Region region = MUST(pair_.a->regionOf(at_, kBytes, Access::kLocal));
    const auto offset = static_cast<uint64_t>(at_ - region.data());
    fillPattern(memory(), pattern);
    const Block block{&region, offset, &thereFromA_, 0, kBytes};
    EXPECT_OK(MUST(put(pair_.toB, {&block, 1})).wait(kSoon));
    EXPECT_EQ(firstWrong({there_.data(), kBytes}, pattern), kBytes);
    fillPattern({there_.data(), kBytes}, pattern + 1);
    EXPECT_OK(MUST(get(pair_.toB, {&block, 1})).wait(kSoon));
    EXPECT_EQ(firstWrong(memory(), pattern + 1), kBytes);
    return region;
  }

  ContextPair pair_{configFor(kVerbs)};
  void* outer_ = nullptr;
  std::byte* at_ = nullptr;
  Region there_;
  RemoteRegion thereFromA_;
};

// Each time the device must have let go of the pages that were there before.
TEST_F(VerbsFrees, OtherMemoryAtTheSamePlaceIsRegisteredAnew) {
  Region before = moves(1);
  EXPECT_EQ(moves(2).record(), before.record()) << "nothing was freed";
  for (uint64_t round = 1; round <= 5; ++round) {
    ASSERT_EQ(::munmap(at_, kBytes), 0);
    mapAnew();
    const Region after = moves(10 * round);
    EXPECT_NE(after.record(), before.record());
    before = after;
  }
  // Given back without being unmapped: other pages, too.
  ASSERT_EQ(::madvise(at_, kBytes, MADV_DONTNEED), 0);
  EXPECT_NE(moves(100).record(), before.record());
  // In part: what has the region goes on with the rest.
  const Region whole = moves(110);
  ASSERT_EQ(::munmap(at_ + kBytes - 4096, 4096), 0);
  EXPECT_OK(whole.status());
  const auto offset = static_cast<uint64_t>(at_ - whole.data());
  const Block block{&whole, offset, &thereFromA_, 0, kBytes / 2};
  fillPattern(memory().first(kBytes / 2), 120);
  EXPECT_OK(MUST(put(pair_.toB, {&block, 1})).wait(kSoon));
  EXPECT_EQ(firstWrong({there_.data(), kBytes / 2}, 120), kBytes / 2);
}

// Keeps the watch's thread between what it reads and the others that it tells: it is told first,
// being the last to come.
struct SlowEars final : FreeWatch::Listener {
  void freed() noexcept override { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }
};

TEST_F(VerbsFrees, APeerIsToldThatWhatItWasLentWasFreed) {
  const Region lent = MUST(pair_.a->regionOf(at_, kBytes, Access::kRemoteReadWrite));
  EXPECT_EQ(lent.data(), at_);
  EXPECT_EQ(lent.bytes(), kBytes);
  const RemoteRegion fromB = MUST(pair_.toA.importRegion(lent.share()));
  const Block block{&there_, 0, &fromB, 0, kBytes};
  const auto send = [&](uint64_t pattern) -> Status {
    fillPattern({there_.data(), kBytes}, pattern);
    PEERLANE_ASSIGN(const Transfer posted, put(pair_.toA, {&block, 1}));
    return posted.wait(kSoon);
  };
  EXPECT_OK(send(1));
  EXPECT_EQ(firstWrong(memory(), 1), kBytes);
  SlowEars slow;
  const auto watched = MUST(FreeWatch::watch(at_, kBytes, slow));
  ASSERT_EQ(::munmap(at_, kBytes), 0);
  mapAnew();
  EXPECT_EQ(lent.status().code(), Code::kRevoked) << "before munmap() had returned";
  // Until the word is there, a device that keeps pages writes to those that were.
  const auto limit = std::chrono::steady_clock::now() + kSoon;
  Status told;
  while (told.isOk() && std::chrono::steady_clock::now() < limit) told = send(2);
  EXPECT_EQ(told.code(), Code::kRevoked) << told.toString();
  const Region anew = MUST(pair_.a->regionOf(at_, kBytes, Access::kRemoteReadWrite));
  const RemoteRegion anewFromB = MUST(pair_.toA.importRegion(anew.share()));
  const Block toAnew{&there_, 0, &anewFromB, 0, kBytes};
  fillPattern({there_.data(), kBytes}, 3);
  EXPECT_OK(MUST(put(pair_.toA, {&toAnew, 1})).wait(kSoon));
  EXPECT_EQ(firstWrong(memory(), 3), kBytes);
  EXPECT_EQ(send(4).code(), Code::kRevoked);
}

}  // namespace
}  // namespace peerlane

#endif
