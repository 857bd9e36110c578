// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/transfer/plan.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "peerlane/os/fd.h"
#include "tests/channel/context_pair.h"
#include "tests/core/soon.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

class PlanTest : public NearAndFarTest {
 protected:
  static constexpr uint64_t kBytes = 64 * 1024;
  PlanTest() : NearAndFarTest(kBytes) {}
  IndexedBlocks pages(uint64_t blockBytes, uint64_t most) {
    IndexedBlocks blocks;
    blocks.local = &near_->region();
    blocks.localCount = kBytes / blockBytes;
    blocks.remote = &remote_;
    blocks.remoteCount = kBytes / blockBytes;
    blocks.blockBytes = blockBytes;
    blocks.maxBlocksPerPost = most;
    return blocks;
  }
  static void finish(const Result<Transfer>& transfer) {
    ASSERT_OK(transfer.status());
    ASSERT_OK(transfer->wait(kSoon));
  }
};

INSTANTIATE_TEST_SUITE_P(Routes, PlanTest, everyRoute(), routeName);

TEST_P(PlanTest, MovesWhatTheMemoryHoldsAtEachPost) {
  const Block blocks[] = {{&near_->region(), 10, &remote_, 1000, 100},
                          {&near_->region(), 4096, &remote_, 20, 900}};
  Plan putting = MUST(Plan::create(pair_.toB, Direction::kPut, blocks));
  Plan getting = MUST(Plan::create(pair_.toB, Direction::kGet, blocks));
  for (int round = 0; round < 50; ++round) {
    near_->data()[10] = near_->shadow()[10] = static_cast<std::byte>(round);
    near_->data()[4995] = near_->shadow()[4995] = static_cast<std::byte>(round + 1);
    finish(putting.post());
    std::memcpy(far_->shadow() + 1000, near_->shadow() + 10, 100);
    std::memcpy(far_->shadow() + 20, near_->shadow() + 4096, 900);
    ASSERT_TRUE(far_->isAsExpected());
    far_->data()[1099] = far_->shadow()[1099] = static_cast<std::byte>(round * 3);
    finish(getting.post());
    near_->shadow()[109] = static_cast<std::byte>(round * 3);
    ASSERT_TRUE(near_->isAsExpected());
  }
}

TEST_P(PlanTest, PostsStridedBlocks) {
  const StridedBlocks blocks{.local = &near_->region(),
                             .localStride = 64,
                             .remote = &remote_,
                             .remoteStride = 128,
                             .blockBytes = 60,
                             .count = 500};
  Plan plan = MUST(Plan::create(pair_.toB, Direction::kPut, blocks));
  finish(plan.post());
  for (uint64_t i = 0; i < 500; ++i)
    std::memcpy(far_->shadow() + i * 128, near_->shadow() + i * 64, 60);
  EXPECT_TRUE(far_->isAsExpected());
}

TEST_P(PlanTest, IndexedPostsTakeFreshNumbersEachTime) {
  std::minstd_rand random(5);
  for (const uint64_t blockBytes : {64, 1000}) {
    IndexedBlocks blocks = pages(blockBytes, 60);
    blocks.localOffset = 16;
    blocks.localCount -= 1;
    Plan putting = MUST(Plan::create(pair_.toB, Direction::kPut, blocks));
    Plan getting = MUST(Plan::create(pair_.toB, Direction::kGet, blocks));
    std::vector<uint32_t> local(blocks.localCount);
    std::vector<uint32_t> remote(blocks.remoteCount);
    std::iota(local.begin(), local.end(), 0);
    std::iota(remote.begin(), remote.end(), 0);
    for (int round = 0; round < 20; ++round) {
      std::shuffle(local.begin(), local.end(), random);
      std::shuffle(remote.begin(), remote.end(), random);
      const size_t count = 1 + random() % 60;
      const std::span locals = std::span(local).first(count);
      const std::span remotes = std::span(remote).first(count);
      finish(putting.post(locals, remotes));
      for (size_t i = 0; i < count; ++i)
        std::memcpy(far_->shadow() + remotes[i] * blockBytes,
                    near_->shadow() + 16 + locals[i] * blockBytes, blockBytes);
      ASSERT_TRUE(far_->isAsExpected()) << "round " << round;
      finish(getting.post(remotes.size() < blocks.localCount ? locals : locals, remotes));
      ASSERT_TRUE(near_->isAsExpected()) << "the same blocks came back";
    }
  }
}

TEST_P(PlanTest, IndexedRunsOfNeighboursArriveWhole) {
  Plan plan = MUST(Plan::create(pair_.toB, Direction::kPut, pages(64, 1024)));
  // Runs up, single ones, a run that is broken on one side only, and the last block.
  const std::vector<uint32_t> local = {0, 1, 2, 3, 10, 20, 21, 22, 5, 4, 1023};
  const std::vector<uint32_t> remote = {7, 8, 9, 10, 0, 100, 102, 103, 200, 201, 1023};
  finish(plan.post(local, remote));
  for (size_t i = 0; i < local.size(); ++i)
    std::memcpy(far_->shadow() + remote[i] * 64, near_->shadow() + local[i] * 64, 64);
  EXPECT_TRUE(far_->isAsExpected());
}

// Source blocks may repeat; destination blocks may not.
TEST_P(PlanTest, IndexedRefusalsMoveNothing) {
  Plan putting = MUST(Plan::create(pair_.toB, Direction::kPut, pages(64, 4)));
  Plan getting = MUST(Plan::create(pair_.toB, Direction::kGet, pages(64, 4)));
  using Numbers = std::vector<uint32_t>;
  struct Row {
    Plan* plan;
    Numbers local;
    Numbers remote;
    const char* said;
  };
  for (const Row& row :
       {Row{&putting, {1, 2}, {3, 3}, "destination block 3"},
        Row{&putting, {1, 2, 5}, {9, 3, 9}, "destination block 9"},
        Row{&getting, {7, 7}, {1, 2}, "destination block 7"}, Row{&putting, {1}, {1024}, "1024"},
        Row{&putting, {1024}, {1}, "1024"}, Row{&getting, {4294967295}, {1}, "4294967295"},
        Row{&putting, {1, 2}, {1}, "2 local and 1"}, Row{&putting, {}, {}, "0 local"},
        Row{&putting, {1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}, "1 to 4"}}) {
    const auto refused = row.plan->post(row.local, row.remote);
    ASSERT_FALSE(refused.isOk()) << row.said;
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    EXPECT_NE(refused.status().message().find(row.said), std::string_view::npos)
        << refused.status().toString();
  }
  EXPECT_TRUE(far_->isAsExpected());
  EXPECT_TRUE(near_->isAsExpected());
  // And the plan is as good as before.
  const Numbers same = {6, 6, 6};
  const Numbers apart = {1, 2, 3};
  finish(putting.post(same, apart));
  for (const uint32_t block : apart)
    std::memcpy(far_->shadow() + block * 64, near_->shadow() + 6 * 64, 64);
  EXPECT_TRUE(far_->isAsExpected());
  finish(putting.post(same, apart));
}

TEST_P(PlanTest, TheTwoFormsOfPostAreNotMixedUp) {
  const Block block{&near_->region(), 0, &remote_, 0, 8};
  Plan fixed = MUST(Plan::create(pair_.toB, Direction::kPut, {&block, 1}));
  Plan indexed = MUST(Plan::create(pair_.toB, Direction::kPut, pages(64, 4)));
  const std::vector<uint32_t> one = {1};
  EXPECT_EQ(fixed.post(one, one).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(indexed.post().status().code(), Code::kInvalidArgument);
  Plan empty;
  EXPECT_FALSE(empty);
  EXPECT_EQ(empty.post().status().code(), Code::kInvalidArgument);
  EXPECT_EQ(empty.post(one, one).status().code(), Code::kInvalidArgument);
}

TEST_P(PlanTest, ASignalFollowsTheBytesOfEachPost) {
  const Block block{&near_->region(), 0, &remote_, 0, 4096};
  PlanOptions options;
  options.signal = 5;
  options.signalAdd = 3;
  Plan plan = MUST(Plan::create(pair_.toB, Direction::kPut, {&block, 1}, options));
  const Signal signal = MUST(Signal::create(pair_.toA, 5));
  EXPECT_EQ(signal.value(), 0u);
  // The receiver reads what the signal announced; the credit keeps the sender from overwriting it.
  const Signal credit = MUST(Signal::create(pair_.toB, 6));
  constexpr uint64_t kRounds = 300;
  std::atomic<uint64_t> wrong{0};
  std::thread receiver([&] {
    for (uint64_t i = 1; i <= kRounds; ++i) {
      if (!signal.wait(3 * i, kSoon).isOk()) wrong.fetch_add(1);
      const std::vector<std::byte> expected(4096, static_cast<std::byte>(i));
      if (firstDifference(far_->data(), expected.data(), 4096) != 4096) wrong.fetch_add(1);
      if (const auto sent = addSignal(pair_.toA, 6); !sent.isOk() || !sent->wait(kSoon).isOk())
        wrong.fetch_add(1);
    }
  });
  for (uint64_t i = 1; i <= kRounds; ++i) {
    std::memset(near_->data(), static_cast<int>(i & 0xff), 4096);
    finish(plan.post());
    EXPECT_OK(credit.wait(i, kSoon));
  }
  receiver.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_EQ(signal.value(), 3 * kRounds);
  std::memcpy(near_->shadow(), near_->data(), 4096);
  std::memcpy(far_->shadow(), near_->data(), 4096);
}

TEST_P(PlanTest, RefusesWhatPutAndGetRefuse) {
  PlanOptions options;
  options.signal = 1;
  const Block block{&near_->region(), 0, &remote_, 0, 8};
  EXPECT_EQ(Plan::create(pair_.toB, Direction::kGet, {&block, 1}, options).status().code(),
            Code::kInvalidArgument);
  options.signal = 64;
  const auto number = Plan::create(pair_.toB, Direction::kPut, {&block, 1}, options);
  EXPECT_EQ(number.status().code(), Code::kInvalidArgument);
  EXPECT_NE(number.status().message().find("64"), std::string_view::npos);
  EXPECT_EQ(Plan::create(Peer(), Direction::kPut, {&block, 1}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(Plan::create(pair_.toA, Direction::kPut, {&block, 1}).status().code(),
            Code::kInvalidArgument)
      << "a region of another peer";
  EXPECT_EQ(Plan::create(pair_.toB, Direction::kPut, pages(64, 0)).status().code(),
            Code::kInvalidArgument);
  IndexedBlocks outside = pages(64, 4);
  outside.blockBytes = 0;
  EXPECT_EQ(Plan::create(pair_.toB, Direction::kPut, outside).status().code(),
            Code::kInvalidArgument);
  outside = pages(64, 4);
  outside.remoteCount += 1;
  EXPECT_EQ(Plan::create(pair_.toB, Direction::kPut, outside).status().code(),
            Code::kInvalidArgument);
  outside = pages(64, 4);
  outside.localStride = 63;
  EXPECT_EQ(Plan::create(pair_.toB, Direction::kPut, outside).status().code(),
            Code::kInvalidArgument);
  outside = pages(64, 4);
  outside.remoteStride = UINT64_MAX / 2;
  EXPECT_EQ(Plan::create(pair_.toB, Direction::kPut, outside).status().code(),
            Code::kInvalidArgument);
}

// Posted as fast as the last one ended, by whoever waits: the moment between "ended" and "let go by
// the engine" belongs to nobody.
TEST_P(PlanTest, MayBePostedTheVeryMomentItEnded) {
  const Block block{&near_->region(), 0, &remote_, 0, 256};
  Plan plan = MUST(Plan::create(pair_.toB, Direction::kPut, {&block, 1}));
  for (int i = 0; i < 3000; ++i) {
    const auto transfer = plan.post();
    ASSERT_OK(transfer.status());
    if (i % 3 == 0) {
      while (!transfer->done()) std::this_thread::yield();
    } else {
      ASSERT_OK(transfer->wait(kSoon));
    }
  }
}

TEST_P(PlanTest, WhileItRunsAnotherPostIsTold) {
  const Block block{&near_->region(), 0, &remote_, 0, kBytes};
  Plan plan = MUST(Plan::create(pair_.toB, Direction::kPut, {&block, 1}));
  int told = 0;
  std::vector<Transfer> accepted;
  for (int i = 0; i < 2000; ++i) {
    const auto transfer = plan.post();
    if (transfer.isOk()) {
      accepted.push_back(*transfer);
    } else {
      ASSERT_EQ(transfer.status().code(), Code::kTryAgain) << transfer.status().toString();
      ++told;
      ASSERT_OK(accepted.back().wait(kSoon));
    }
  }
  for (const Transfer& transfer : accepted) EXPECT_OK(transfer.wait(kSoon));
  const bool synchronous =
      std::string(GetParam().engine) == "mapped" || std::string(GetParam().engine) == "cma";
  EXPECT_EQ(told == 0, synchronous) << told;
  std::memcpy(far_->shadow(), near_->shadow(), kBytes);
  EXPECT_TRUE(far_->isAsExpected());
}

TEST_P(PlanTest, CallbacksAndDescriptorsAreOfTheirOwnPost) {
  const Block block{&near_->region(), 0, &remote_, 0, kBytes};
  Plan plan = MUST(Plan::create(pair_.toB, Direction::kPut, {&block, 1}));
  std::atomic<int> called{0};
  for (int i = 1; i <= 300; ++i) {
    const auto transfer = plan.post();
    ASSERT_OK(transfer.status());
    transfer->onEnd([&](const Status& status) {
      if (status.isOk()) called.fetch_add(1);
    });
    pollfd wanted{MUST(transfer->fd()), POLLIN, 0};
    ASSERT_EQ(poll(&wanted, 1, 20'000), 1);
    ASSERT_TRUE(transfer->done()) << "readable before the end, post " << i;
    ASSERT_OK(transfer->wait(kSoon));
    EXPECT_TRUE(soon([&] { return called.load() >= i; }));
    ASSERT_EQ(called.load(), i);
  }
}

TEST_P(PlanTest, OneLoopWatchesManyPosts) {
  const Block block{&near_->region(), 0, &remote_, 0, kBytes};
  Plan plan = MUST(Plan::create(pair_.toB, Direction::kPut, {&block, 1}));
  const Fd loop(epoll_create1(EPOLL_CLOEXEC));
  std::vector<Transfer> posts;
  constexpr uint32_t kPosts = 20;
  while (posts.size() < kPosts) {
    const auto posted = plan.post();
    if (posted.status().code() == Code::kTryAgain) {
      ASSERT_OK(posts.back().wait(kSoon));
      continue;
    }
    ASSERT_OK(posted.status());
    epoll_event wanted{.events = EPOLLIN, .data = {.u32 = static_cast<uint32_t>(posts.size())}};
    posts.push_back(*posted);
    ASSERT_EQ(epoll_ctl(loop.get(), EPOLL_CTL_ADD, MUST(posts.back().fd()), &wanted), 0)
        << std::strerror(errno) << ", post " << posts.size();
  }
  std::vector<bool> told(kPosts);
  const auto limit = std::chrono::steady_clock::now() + kSoon;
  while (std::count(told.begin(), told.end(), true) < kPosts &&
         std::chrono::steady_clock::now() < limit) {
    std::array<epoll_event, kPosts> events{};
    const int count = epoll_wait(loop.get(), events.data(), kPosts, 100);
    for (int i = 0; i < count; ++i) {
      EXPECT_TRUE(posts[events[static_cast<size_t>(i)].data.u32].done());
      told[events[static_cast<size_t>(i)].data.u32] = true;
    }
  }
  EXPECT_EQ(std::count(told.begin(), told.end(), true), kPosts);
}

TEST_P(PlanTest, AfterTheRegionLeftItIsRefused) {
  const Block block{&near_->region(), 0, &remote_, 0, 64};
  Plan plan = MUST(Plan::create(pair_.toB, Direction::kPut, {&block, 1}));
  finish(plan.post());
  std::memcpy(far_->shadow(), near_->shadow(), 64);
  EXPECT_OK(pair_.b->unregister(far_->releaseRegion(), kSoon));
  // The peer let go when it was asked: a post finds the door closed and nothing moves.
  near_->data()[0] = near_->shadow()[0] = std::byte{0xee};
  const auto refused = plan.post();
  ASSERT_FALSE(refused.isOk());
  EXPECT_EQ(refused.status().code(), Code::kClosed) << refused.status().toString();
  EXPECT_TRUE(far_->isAsExpected());
}

TEST_P(PlanTest, AfterTheLocalRegionLeftItIsRefused) {
  const Block block{&near_->region(), 0, &remote_, 0, 64};
  Plan plan = MUST(Plan::create(pair_.toB, Direction::kPut, {&block, 1}));
  EXPECT_OK(pair_.a->unregister(near_->releaseRegion(), kSoon));
  EXPECT_EQ(plan.post().status().code(), Code::kClosed);
}

TEST_P(PlanTest, AfterThePeerLeftItSaysSo) {
  const Block block{&near_->region(), 0, &remote_, 0, 64};
  Plan plan = MUST(Plan::create(pair_.toB, Direction::kPut, {&block, 1}));
  pair_.toB.close();
  EXPECT_EQ(plan.post().status().code(), Code::kClosed);
  pair_.b.reset();
  far_->abandon();
  EXPECT_EQ(plan.post().status().code(), Code::kClosed);
}

}  // namespace
}  // namespace peerlane
