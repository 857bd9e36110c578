// SPDX-License-Identifier: Apache-2.0
//
// put and get over every route: each byte arrives, no other byte changes. What is refused has a
// file of its own.
#include "peerlane/channel/transfer/transfer.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>

#include "peerlane/session/peer/peer_core.h"
#include "tests/channel/context_pair.h"
#include "tests/core/soon.h"
#include "tests/progress/standing_callback.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

class TransferTest : public RouteTest {
 protected:
  // Posts from a to b and waits.
  void expectPut(std::span<const Block> blocks, const PostOptions& options = {}) {
    const auto transfer = put(pair_.toB, blocks, options);
    ASSERT_OK(transfer.status());
    EXPECT_OK(transfer->wait(kSoon));
    EXPECT_TRUE(transfer->done());
  }
  void expectGet(std::span<const Block> blocks) {
    const auto transfer = get(pair_.toB, blocks);
    ASSERT_OK(transfer.status());
    EXPECT_OK(transfer->wait(kSoon));
  }
};

INSTANTIATE_TEST_SUITE_P(Routes, TransferTest, everyRoute(), routeName);

TEST_P(TransferTest, TakesTheRouteOfItsName) {
  auto near = memory(*pair_.a, 4096, 1);
  auto far = memory(*pair_.b, 4096, 2);
  const RemoteRegion remote = far->importedBy(pair_.toB);
  EXPECT_EQ(remote.engine(), "") << "nothing was imported yet";
  EXPECT_OK(remote.prepare(kSoon));
  EXPECT_EQ(remote.engine(), GetParam().engine);
  EXPECT_EQ(pair_.toB.route().link, GetParam().link);
  EXPECT_EQ(pair_.toA.route().link, GetParam().link);
  const Block block{&near->region(), 0, &remote, 0, 100};
  expectPut({&block, 1});
  std::memcpy(far->shadow(), near->data(), 100);
  EXPECT_TRUE(far->isAsExpected());
  // The counter names the route.
  const std::string series = "peerlane_bytes_total{link=\"" + std::string(GetParam().link) +
                             "\",engine=\"" + GetParam().engine + "\",direction=\"put\"} 100\n";
  EXPECT_NE(pair_.a->metrics().find(series), std::string::npos) << pair_.a->metrics();
}

TEST_P(TransferTest, MovesOneBlockOfEveryShape) {
  constexpr size_t kBytes = size_t{3} << 20;
  auto near = memory(*pair_.a, kBytes, 1);
  auto far = memory(*pair_.b, kBytes, 2);
  const RemoteRegion remote = far->importedBy(pair_.toB);
  struct Shape {
    uint64_t local;
    uint64_t distant;
    uint64_t bytes;
  };
  for (const Shape& shape :
       {Shape{0, 0, 1}, Shape{1, 3, 7}, Shape{0, kBytes - 1, 1}, Shape{kBytes - 8, 0, 8},
        Shape{5, 4096, 4095}, Shape{100, 200, 65537}, Shape{0, 0, kBytes}}) {
    Block block{&near->region(), shape.local, &remote, shape.distant, shape.bytes};
    expectPut({&block, 1});
    std::memcpy(far->shadow() + shape.distant, near->shadow() + shape.local, shape.bytes);
    ASSERT_TRUE(far->isAsExpected()) << "put of " << shape.bytes;
    // Back to another place, wherever it fits.
    block.localOffset = kBytes - shape.bytes;
    expectGet({&block, 1});
    std::memcpy(near->shadow() + block.localOffset, far->shadow() + shape.distant, shape.bytes);
    ASSERT_TRUE(near->isAsExpected()) << "get of " << shape.bytes;
  }
}

TEST_P(TransferTest, MovesScatteredListsOfSeveralRegions) {
  auto near0 = memory(*pair_.a, 200'000, 1);
  auto near1 = memory(*pair_.a, 300'000, 2);
  auto far0 = memory(*pair_.b, 250'000, 3);
  auto far1 = memory(*pair_.b, 250'000, 4);
  const RemoteRegion remote0 = far0->importedBy(pair_.toB);
  const RemoteRegion remote1 = far1->importedBy(pair_.toB);
  std::minstd_rand random(7);
  for (const bool isPut : {true, false}) {
    // Destinations on a grid in random order: apart, but with gaps that must stay untouched.
    std::vector<Block> blocks;
    for (uint64_t i = 0; i < 200; ++i) {
      const uint64_t bytes = 1 + random() % 900;
      const uint64_t slot = i / 2 * 1000 + random() % 50;
      const bool first = i % 2 == 0;
      const uint64_t source = random() % 100'000;
      blocks.push_back({random() % 2 == 0 ? &near0->region() : &near1->region(),
                        isPut ? source : slot, first ? &remote0 : &remote1, isPut ? slot : source,
                        bytes});
      if (!isPut) blocks.back().local = first ? &near0->region() : &near1->region();
    }
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (const Block& block : blocks) {
      TestMemory& local = block.local == &near0->region() ? *near0 : *near1;
      TestMemory& distant = block.remote == &remote0 ? *far0 : *far1;
      if (isPut)
        std::memcpy(distant.shadow() + block.remoteOffset, local.shadow() + block.localOffset,
                    block.bytes);
      else
        std::memcpy(local.shadow() + block.localOffset, distant.shadow() + block.remoteOffset,
                    block.bytes);
    }
    if (isPut)
      expectPut(blocks);
    else
      expectGet(blocks);
    for (const auto* each : {&near0, &near1, &far0, &far1})
      ASSERT_TRUE((*each)->isAsExpected()) << (isPut ? "put" : "get");
  }
}

TEST_P(TransferTest, MovesManySmallBlocksInOneCall) {
  constexpr uint64_t kBlocks = 5000;
  auto near = memory(*pair_.a, kBlocks * 64, 1);
  auto far = memory(*pair_.b, kBlocks * 64, 2);
  const RemoteRegion remote = far->importedBy(pair_.toB);
  std::vector<Block> blocks;
  for (uint64_t i = 0; i < kBlocks; ++i) {
    const uint64_t other = (i * 1231) % kBlocks;
    blocks.push_back({&near->region(), other * 64, &remote, i * 64, 48});
    std::memcpy(far->shadow() + i * 64, near->shadow() + other * 64, 48);
  }
  expectPut(blocks);
  EXPECT_TRUE(far->isAsExpected());
}

TEST_P(TransferTest, MovesStridedBlocks) {
  auto near = memory(*pair_.a, 100'000, 1);
  auto far = memory(*pair_.b, 100'000, 2);
  const RemoteRegion remote = far->importedBy(pair_.toB);
  const StridedBlocks blocks{.local = &near->region(),
                             .localOffset = 17,
                             .localStride = 300,
                             .remote = &remote,
                             .remoteOffset = 5,
                             .remoteStride = 211,
                             .blockBytes = 200,
                             .count = 333};
  auto transfer = put(pair_.toB, blocks);
  ASSERT_OK(transfer.status());
  EXPECT_OK(transfer->wait(kSoon));
  for (uint64_t i = 0; i < blocks.count; ++i)
    std::memcpy(far->shadow() + 5 + i * 211, near->shadow() + 17 + i * 300, 200);
  ASSERT_TRUE(far->isAsExpected());
  transfer = get(pair_.toB, blocks);
  ASSERT_OK(transfer.status());
  EXPECT_OK(transfer->wait(kSoon));
  EXPECT_TRUE(near->isAsExpected()) << "the same bytes came back";
  // A source may be read several times: stride 0 there.
  StridedBlocks repeated = blocks;
  repeated.localStride = 0;
  transfer = put(pair_.toB, repeated);
  ASSERT_OK(transfer.status());
  EXPECT_OK(transfer->wait(kSoon));
  for (uint64_t i = 0; i < blocks.count; ++i)
    std::memcpy(far->shadow() + 5 + i * 211, near->shadow() + 17, 200);
  EXPECT_TRUE(far->isAsExpected());
}

TEST_P(TransferTest, MovesBothWaysFromManyThreads) {
  constexpr int kThreads = 3;
  constexpr uint64_t kBytes = 40'000;
  auto inA = memory(*pair_.a, kBytes * kThreads * 2, 1);
  auto inB = memory(*pair_.b, kBytes * kThreads * 2, 2);
  const RemoteRegion remoteB = inB->importedBy(pair_.toB);
  const RemoteRegion remoteA = inA->importedBy(pair_.toA);
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  // Lower half: a's threads put it from a to b. Upper half: b's threads put it from b to a.
  for (int t = 0; t < kThreads; ++t) {
    for (const bool fromA : {true, false}) {
      threads.emplace_back([&, t, fromA] {
        const uint64_t base = (fromA ? 0 : kBytes * kThreads) + static_cast<uint64_t>(t) * kBytes;
        std::minstd_rand random(static_cast<uint32_t>(t) + 1);
        for (int round = 0; round < 40; ++round) {
          for (uint64_t done = 0; done < kBytes;) {
            const uint64_t bytes = std::min<uint64_t>(1 + random() % 9000, kBytes - done);
            const Block block{fromA ? &inA->region() : &inB->region(), base + done,
                              fromA ? &remoteB : &remoteA, base + done, bytes};
            const auto transfer = put(fromA ? pair_.toB : pair_.toA, {&block, 1});
            if (!transfer.isOk() || !transfer->wait(kSoon).isOk()) failed.fetch_add(1);
            done += bytes;
          }
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed.load(), 0);
  std::memcpy(inB->shadow(), inA->shadow(), kBytes * kThreads);
  std::memcpy(inA->shadow() + kBytes * kThreads, inB->shadow() + kBytes * kThreads,
              kBytes * kThreads);
  EXPECT_TRUE(inA->isAsExpected());
  EXPECT_TRUE(inB->isAsExpected());
}

TEST_P(TransferTest, ManyAreInFlightAtOnce) {
  constexpr uint64_t kCount = 300;
  auto near = memory(*pair_.a, kCount * 100, 1);
  auto far = memory(*pair_.b, kCount * 100, 2);
  const RemoteRegion remote = far->importedBy(pair_.toB);
  std::vector<Transfer> transfers;
  for (uint64_t i = 0; i < kCount; ++i) {
    const Block block{&near->region(), i * 100, &remote, (kCount - 1 - i) * 100, 90};
    auto transfer = put(pair_.toB, {&block, 1});
    ASSERT_OK(transfer.status());
    transfers.push_back(std::move(transfer).value());
    std::memcpy(far->shadow() + (kCount - 1 - i) * 100, near->shadow() + i * 100, 90);
  }
  for (const Transfer& transfer : transfers) EXPECT_OK(transfer.wait(kSoon));
  EXPECT_TRUE(far->isAsExpected());
}

TEST_P(TransferTest, TellsItsEndByDescriptorAndCallbackOnce) {
  auto near = memory(*pair_.a, 1 << 20, 1);
  auto far = memory(*pair_.b, 1 << 20, 2);
  const RemoteRegion remote = far->importedBy(pair_.toB);
  for (int round = 0; round < 20; ++round) {
    const Block block{&near->region(), 0, &remote, 0, 1 << 20};
    const auto transfer = put(pair_.toB, {&block, 1});
    ASSERT_OK(transfer.status());
    std::atomic<int> called{0};
    std::atomic<bool> wasOk{false};
    transfer->onEnd([&](const Status& status) {
      wasOk.store(status.isOk());
      called.fetch_add(1);
    });
    pollfd wanted{MUST(transfer->fd()), POLLIN, 0};
    ASSERT_EQ(poll(&wanted, 1, 20'000), 1);
    EXPECT_TRUE(transfer->done());
    ASSERT_OK(transfer->wait(kSoon));
    EXPECT_TRUE(soon([&] { return called.load() != 0; }));
    EXPECT_EQ(called.load(), 1);
    EXPECT_TRUE(wasOk.load());
    // Asked after the end, it is called once the first one has returned, which is not called again.
    std::atomic<bool> again{false};
    transfer->onEnd([&](const Status& status) { again.store(status.isOk()); });
    EXPECT_TRUE(soon([&] { return again.load(); }));
    EXPECT_EQ(called.load(), 1);
  }
}

// One that had ended when it was returned may have no record, but it has a descriptor of its own.
TEST(EndedTransfer, HasADescriptorThatIsReadable) {
  const Transfer one(Status::ok()), other(Status(Code::kClosed, "closed"));
  const int fd = MUST(one.fd());
  EXPECT_EQ(MUST(one.fd()), fd);
  EXPECT_NE(MUST(other.fd()), fd) << "an event loop takes each descriptor once";
  pollfd wanted{fd, POLLIN, 0};
  EXPECT_EQ(poll(&wanted, 1, 0), 1);
  // It is there as long as the handle, or a copy made since.
  Transfer kept;
  {
    Transfer first(Status::ok());
    wanted.fd = MUST(first.fd());
    const Transfer copied = first;
    const Transfer moved = std::move(first);
    kept = copied;
  }
  EXPECT_EQ(MUST(kept.fd()), wanted.fd);
  EXPECT_EQ(poll(&wanted, 1, 0), 1);
  EXPECT_EQ(wanted.revents, POLLIN);
  kept = Transfer();
  EXPECT_EQ(poll(&wanted, 1, 0), 1);
  EXPECT_EQ(wanted.revents, POLLNVAL) << "nobody is left who could ask for it";
}

TEST(EndedTransfer, ThreadsThatAskTogetherGetTheSameDescriptor) {
  for (int round = 0; round < 50; ++round) {
    const Transfer ended(Status::ok());
    std::array<int, 4> fds{};
    std::vector<std::thread> threads;
    for (int& fd : fds)
      threads.emplace_back([&] {
        // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): a copy is what is looked at
        const Transfer copy = ended;
        EXPECT_OK(copy.fd().status());
        fd = MUST(ended.fd());
      });
    for (std::thread& thread : threads) thread.join();
    for (const int fd : fds) EXPECT_EQ(fd, fds[0]);
  }
}

// What the call itself copies depends on whether the peer has answered for the region.
TEST_P(TransferTest, IsTheCopyItselfOnceItsRegionIsImported) {
  TestMemory near(*pair_.a, 4096, GetParam().shared);
  TestMemory far(*pair_.b, 4096, GetParam().shared, Access::kRemoteReadWrite, 2);
  const RemoteRegion remote = far.importedBy(pair_.toB);
  const Block block{&near.region(), 0, &remote, 0, 4096};
  {
    const StandingCallback stands(pair_.toA.core()->progress());
    const Transfer late = MUST(put(pair_.toB, {&block, 1}));
    EXPECT_FALSE(late.done());
    late.cancel();
    EXPECT_EQ(late.wait(kSoon).code(), Code::kCancelled);
  }
  ASSERT_OK(remote.prepare(kSoon));
  const Transfer transfer = MUST(put(pair_.toB, {&block, 1}));
  const std::string engine = GetParam().engine;
  EXPECT_TRUE(transfer.done() || (engine != "mapped" && engine != "cma"));
  EXPECT_OK(transfer.wait(kSoon));
  EXPECT_EQ(firstDifference(near.data(), far.data(), 4096), 4096u);
  std::memcpy(far.shadow(), near.data(), 4096);
}

TEST_P(TransferTest, FlushReturnsWhenAllIsThere) {
  auto near = memory(*pair_.a, 1 << 20, 1);
  auto far = memory(*pair_.b, 1 << 20, 2);
  const RemoteRegion remote = far->importedBy(pair_.toB);
  EXPECT_OK(flush(pair_.toB, kSoon));
  std::vector<Transfer> transfers;
  for (uint64_t i = 0; i < 8; ++i) {
    const Block block{&near->region(), i * 1000, &remote, i * 2000, 1000};
    transfers.push_back(MUST(put(pair_.toB, {&block, 1})));
    std::memcpy(far->shadow() + i * 2000, near->shadow() + i * 1000, 1000);
  }
  for (const Transfer& transfer : transfers) ASSERT_OK(transfer.wait(kSoon));
  EXPECT_OK(flush(pair_.toB, kSoon));
  EXPECT_TRUE(far->isAsExpected());
}

// Blocks in one list that the CPU copies, and blocks that an agent moves.
TEST(MixedTransfer, MovesMappedMemoryAndWhatAnAgentReachesInOneList) {
  for (const RouteCase& route : {kCma, kRing, kTcp}) {
    Config config = configFor(route);
    if (route.shmEngine == ShmEngine::kCma) config.shmEngine = ShmEngine::kAuto;
    ContextPair pair(config);
    TestMemory near(*pair.a, 100'000, false, Access::kRemoteReadWrite, 1);
    TestMemory far0(*pair.b, 100'000, true, Access::kRemoteReadWrite, 2);
    TestMemory far1(*pair.b, 100'000, false, Access::kRemoteReadWrite, 3);
    const RemoteRegion remote0 = far0.importedBy(pair.toB);
    const RemoteRegion remote1 = far1.importedBy(pair.toB);
    ASSERT_OK(remote0.prepare(kSoon));
    ASSERT_OK(remote1.prepare(kSoon));
    const bool isMixed = remote0.engine() != remote1.engine();
    EXPECT_EQ(isMixed, route.shmEngine == ShmEngine::kCma) << route;  // the others: both by it
    uint64_t puts = 0;
    std::vector<Block> blocks;
    for (uint64_t i = 0; i < 30; ++i) {
      const bool first = i % 3 != 1;
      blocks.push_back({&near.region(), i * 3000, first ? &remote0 : &remote1, i * 2500, 2000 + i});
    }
    // A single block of either kind among those of the other is a copy instead of a list.
    for (const size_t count : {blocks.size(), size_t{2}, size_t{3}}) {
      const std::span<const Block> some = std::span(blocks).first(count);
      PostOptions options;
      options.notify.signal = 5;
      ASSERT_OK(MUST(put(pair.toB, some, options)).wait(kSoon));
      for (const Block& block : some)
        std::memcpy((block.remote == &remote0 ? far0 : far1).shadow() + block.remoteOffset,
                    near.shadow() + block.localOffset, block.bytes);
      EXPECT_OK(MUST(Signal::create(pair.toA, 5)).wait(++puts, kSoon));
      ASSERT_TRUE(far0.isAsExpected() && far1.isAsExpected()) << route << " put of " << count;
      std::memset(near.data(), 0, near.bytes());
      std::memset(near.shadow(), 0, near.bytes());
      Plan plan = MUST(Plan::create(pair.toB, Direction::kGet, some));
      ASSERT_OK(MUST(plan.post()).wait(kSoon));
      for (const Block& block : some)
        std::memcpy(near.shadow() + block.localOffset,
                    (block.remote == &remote0 ? far0 : far1).shadow() + block.remoteOffset,
                    block.bytes);
      ASSERT_TRUE(near.isAsExpected()) << route << " get of " << count;
    }
  }
}

// The waits of a transfer whose peer does nothing: it is posted, not done, and can be given up.
// Sixteen notifications fill the inbox of a peer that takes none; the next put with one waits.
class StuckTransfer : public NearAndFarTest {
 protected:
  StuckTransfer() : NearAndFarTest(4096) {}
  void SetUp() override {
    ASSERT_OK(remote_.prepare(kSoon));
    for (uint32_t i = 0; i < 16; ++i) {
      options_.notify.tag = i;
      options_.notify.message = std::span<const std::byte>();
      const auto sent = notify(pair_.toB, options_.notify);
      ASSERT_OK(sent.status());
      ASSERT_OK(sent->wait(kSoon));
    }
    options_.notify.tag = 99;
  }
  Transfer postStuck() {
    const Block block{&near_->region(), 0, &remote_, 0, 4096};
    return MUST(put(pair_.toB, {&block, 1}, options_));
  }
  PostOptions options_;
};

INSTANTIATE_TEST_SUITE_P(Routes, StuckTransfer, everyRoute(), routeName);

TEST_P(StuckTransfer, WaitTimesOutAndTheTransferGoesOn) {
  const Transfer stuck = postStuck();
  EXPECT_FALSE(stuck.done());
  EXPECT_EQ(stuck.status().code(), Code::kTryAgain);
  EXPECT_EQ(stuck.wait(10ms).code(), Code::kTimeout);
  EXPECT_EQ(stuck.wait(0ms).code(), Code::kTimeout);
  EXPECT_FALSE(stuck.done());
  const std::string dump = pair_.a->dump();
  EXPECT_NE(dump.find("waits for a word"), std::string::npos) << dump;
  for (uint32_t i = 0; i < 17; ++i) {
    const auto taken = waitNotification(pair_.toA, kSoon);
    ASSERT_OK(taken.status());
    EXPECT_EQ(taken->tag, i < 16 ? i : 99);
  }
  EXPECT_OK(stuck.wait(kSoon));
  std::memcpy(far_->shadow(), near_->shadow(), 4096);
  EXPECT_TRUE(far_->isAsExpected());
}

TEST_P(StuckTransfer, CancelEndsItOnceAndWedgesNobody) {
  const Transfer stuck = postStuck();
  std::atomic<int> called{0};
  std::atomic<Code> code{Code::kOk};
  stuck.onEnd([&](const Status& status) {
    code.store(status.code());
    called.fetch_add(1);
  });
  const auto fd = stuck.fd();
  ASSERT_OK(fd.status());
  stuck.cancel();
  stuck.cancel();
  // Nobody waits by a call: the engine itself must take the turn.
  pollfd wanted{*fd, POLLIN, 0};
  ASSERT_EQ(poll(&wanted, 1, 20'000), 1) << "a cancelled transfer must end by itself";
  EXPECT_EQ(stuck.wait(kSoon).code(), Code::kCancelled);
  EXPECT_EQ(stuck.status().code(), Code::kCancelled);
  EXPECT_TRUE(soon([&] { return called.load() != 0; }));
  EXPECT_EQ(called.load(), 1);
  EXPECT_EQ(code.load(), Code::kCancelled);
  // Its number is given up: notifications before and behind it arrive, it does not.
  options_.notify.tag = 100;
  const Transfer next = postStuck();
  for (uint32_t i = 0; i < 17; ++i) {
    const auto taken = waitNotification(pair_.toA, kSoon);
    ASSERT_OK(taken.status());
    EXPECT_EQ(taken->tag, i < 16 ? i : 100);
  }
  EXPECT_OK(next.wait(kSoon));
  EXPECT_EQ(pollNotification(pair_.toA).status().code(), Code::kTryAgain);
  next.cancel();
  EXPECT_OK(next.status());  // a cancel that comes late changes nothing
}

TEST_P(StuckTransfer, AllItsCallbacksAreCalledInTheirOrder) {
  const Transfer stuck = postStuck();
  const Transfer copy = stuck;
  std::mutex mutex;
  std::vector<int> called;
  for (int i = 0; i < 5; ++i)
    (i % 2 == 0 ? stuck : copy).onEnd([&, i](const Status& status) {
      const std::lock_guard lock(mutex);
      called.push_back(status.code() == Code::kCancelled ? i : -1);
    });
  stuck.cancel();
  const auto limit = std::chrono::steady_clock::now() + kSoon;
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return called.size();
  };
  while (count() < 5 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  const std::lock_guard lock(mutex);
  EXPECT_EQ(called, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST_P(StuckTransfer, ClosingThePeerEndsIt) {
  const Transfer stuck = postStuck();
  pair_.toB.close();
  EXPECT_EQ(stuck.wait(kSoon).code(), Code::kClosed);
  const Block block{&near_->region(), 0, &remote_, 0, 1};
  EXPECT_EQ(put(pair_.toB, {&block, 1}).status().code(), Code::kClosed);
}

TEST_P(StuckTransfer, TheOtherSideClosingEndsIt) {
  const Transfer stuck = postStuck();
  pair_.toA.close();
  EXPECT_EQ(stuck.wait(kSoon).code(), Code::kPeerLost);
  // The data link may end a moment before the connection.
  EXPECT_EQ(waitNotification(pair_.toB, kSoon).status().code(), Code::kPeerLost);
  EXPECT_EQ(pair_.toB.status().code(), Code::kPeerLost);
  EXPECT_EQ(pair_.toB.state(), "lost");
}

TEST_P(StuckTransfer, TheEndOfItsContextEndsIt) {
  const Transfer stuck = postStuck();
  Status ended;
  std::thread waiter([&] { ended = stuck.wait(kSoon); });
  near_->abandon();
  pair_.a.reset();
  waiter.join();
  EXPECT_EQ(ended.code(), Code::kClosed) << ended.toString();
  EXPECT_TRUE(stuck.done());
}

}  // namespace
}  // namespace peerlane
