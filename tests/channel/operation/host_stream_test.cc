// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/operation/host_stream.h"

#include <atomic>
#include <thread>

#include "tests/channel/context_pair.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

class HostStreamTest : public NearAndFarTest {
 protected:
  static constexpr uint64_t kBytes = 100'000;
  HostStreamTest() : NearAndFarTest(kBytes) { onStream_.stream = stream_.get(); }
  std::unique_ptr<HostStream> stream_ = MUST(HostStream::create());
  PostOptions onStream_;
};

INSTANTIATE_TEST_SUITE_P(Routes, HostStreamTest, everyRoute(), routeName);

// Each transfer reads what the one before wrote: only in order does the pattern walk along.
TEST_P(HostStreamTest, EachBeginsWhenTheOneBeforeEnded) {
  constexpr uint64_t kBlock = 1000;
  constexpr uint64_t kSteps = 90;
  std::vector<Transfer> transfers;
  for (uint64_t i = 0; i < kSteps; ++i) {
    const Block out{&near_->region(), i * kBlock, &remote_, i * kBlock, kBlock};
    transfers.push_back(MUST(put(pair_.toB, {&out, 1}, onStream_)));
    const Block back{&near_->region(), (i + 1) * kBlock, &remote_, i * kBlock, kBlock};
    transfers.push_back(MUST(get(pair_.toB, {&back, 1}, onStream_)));
  }
  EXPECT_OK(transfers.back().wait(kSoon));
  for (const Transfer& transfer : transfers) EXPECT_OK(transfer.status());
  for (uint64_t i = 0; i < kSteps; ++i) {
    std::memcpy(far_->shadow() + i * kBlock, near_->shadow(), kBlock);
    std::memcpy(near_->shadow() + (i + 1) * kBlock, near_->shadow(), kBlock);
  }
  EXPECT_TRUE(near_->isAsExpected());
  EXPECT_TRUE(far_->isAsExpected());
}

TEST_P(HostStreamTest, WhatIsRefusedIsRefusedAtOnce) {
  const Block block{&near_->region(), kBytes, &remote_, 0, 1};
  EXPECT_EQ(put(pair_.toB, {&block, 1}, onStream_).status().code(), Code::kInvalidArgument);
}

TEST_P(HostStreamTest, AStuckOneHoldsBackThoseBehindItUntilCancelled) {
  PostOptions options = onStream_;
  options.notify.message = std::span<const std::byte>();
  std::vector<Transfer> transfers;
  for (uint32_t i = 0; i < 17; ++i) {
    options.notify.tag = i;
    transfers.push_back(MUST(notify(pair_.toB, options.notify, stream_.get())));
  }
  const Block block{&near_->region(), 0, &remote_, 0, 100};
  const Transfer behind = MUST(put(pair_.toB, {&block, 1}, onStream_));
  EXPECT_OK(transfers[15].wait(kSoon));
  EXPECT_EQ(transfers[16].wait(10ms).code(), Code::kTimeout);
  EXPECT_EQ(behind.wait(0ms).code(), Code::kTimeout);
  EXPECT_TRUE(far_->isAsExpected()) << "the one behind began too early";
  transfers[16].cancel();
  EXPECT_EQ(transfers[16].wait(kSoon).code(), Code::kCancelled);
  EXPECT_OK(behind.wait(kSoon));
  std::memcpy(far_->shadow(), near_->shadow(), 100);
  EXPECT_TRUE(far_->isAsExpected());
}

TEST_P(HostStreamTest, ACancelledOneThatWaitsInLineMovesNothing) {
  std::vector<Transfer> transfers;
  Notify what;
  what.message = std::span<const std::byte>();
  for (uint32_t i = 0; i < 17; ++i)
    transfers.push_back(MUST(notify(pair_.toB, what, stream_.get())));
  const Block block{&near_->region(), 0, &remote_, 0, 100};
  const Transfer behind = MUST(put(pair_.toB, {&block, 1}, onStream_));
  behind.cancel();
  EXPECT_FALSE(behind.done()) << "its turn has not come";
  transfers[16].cancel();
  EXPECT_EQ(behind.wait(kSoon).code(), Code::kCancelled);
  EXPECT_TRUE(far_->isAsExpected());
}

TEST_P(HostStreamTest, DestructionWaitsForWhatWasPosted) {
  std::vector<Transfer> transfers;
  for (uint64_t i = 0; i < 50; ++i) {
    const Block block{&near_->region(), i * 100, &remote_, i * 200, 100};
    transfers.push_back(MUST(put(pair_.toB, {&block, 1}, onStream_)));
    std::memcpy(far_->shadow() + i * 200, near_->shadow() + i * 100, 100);
  }
  stream_.reset();
  for (const Transfer& transfer : transfers) EXPECT_OK(transfer.status());
  EXPECT_TRUE(far_->isAsExpected());
}

TEST_P(HostStreamTest, ThePeersEndEndsAllThatWait) {
  std::vector<Transfer> transfers;
  Notify what;
  what.message = std::span<const std::byte>();
  for (uint32_t i = 0; i < 30; ++i)
    transfers.push_back(MUST(notify(pair_.toB, what, stream_.get())));
  EXPECT_OK(transfers[15].wait(kSoon));
  pair_.toA.close();
  for (size_t i = 16; i < transfers.size(); ++i)
    EXPECT_EQ(transfers[i].wait(kSoon).code(), Code::kPeerLost);
}

}  // namespace
}  // namespace peerlane
