// SPDX-License-Identifier: Apache-2.0
//
// A region's way out: with transfers in flight, with importers, with both, many times.
#include <atomic>
#include <fstream>
#include <random>
#include <thread>

#include "peerlane/os/process.h"
#include "tests/channel/context_pair.h"
#include "tests/core/soon.h"
#include "tests/os/open_files.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

size_t countMappings() {
  std::ifstream maps("/proc/self/maps");
  size_t lines = 0;
  for (std::string line; std::getline(maps, line);) ++lines;
  return lines;
}

class RegionLife : public NearAndFarTest {
 protected:
  static constexpr uint64_t kBytes = 20'000;
  RegionLife() : NearAndFarTest(kBytes) { EXPECT_OK(remote_.prepare(kSoon)); }
  Block whole() { return {&near_->region(), 0, &remote_, 0, kBytes}; }
  // A put that has moved its bytes and waits for room to notify.
  Transfer postStuck() {
    PostOptions options;
    options.notify.message = std::span<const std::byte>();
    for (int i = 0; i < 16; ++i) EXPECT_OK(MUST(notify(pair_.toB, options.notify)).wait(kSoon));
    const Block block = whole();
    Transfer stuck = MUST(put(pair_.toB, {&block, 1}, options));
    std::memcpy(far_->shadow(), near_->shadow(), kBytes);
    EXPECT_TRUE(soon([&] { return far_->isAsExpected(); }));
    return stuck;
  }
  void takeNotifications(int count) {
    for (int i = 0; i < count; ++i) ASSERT_OK(waitNotification(pair_.toA, kSoon).status());
  }
};

INSTANTIATE_TEST_SUITE_P(Routes, RegionLife, everyRoute(), routeName);

TEST_P(RegionLife, TheLocalSideWaitsForRunningTransfersAndRefusesNewOnes) {
  const Transfer running = postStuck();
  const Region region = near_->region();
  EXPECT_EQ(pair_.a->unregister(region, 10ms).code(), Code::kTimeout);
  const Block block = whole();
  EXPECT_EQ(put(pair_.toB, {&block, 1}).status().code(), Code::kClosed);
  EXPECT_EQ(get(pair_.toB, {&block, 1}).status().code(), Code::kClosed);
  EXPECT_EQ(Plan::create(pair_.toB, Direction::kPut, {&block, 1}).status().code(), Code::kClosed);
  EXPECT_FALSE(running.done()) << "what runs may finish";
  takeNotifications(17);
  EXPECT_OK(running.wait(kSoon));
  EXPECT_OK(pair_.a->unregister(region, kSoon));
  near_->releaseRegion();
  EXPECT_OK(pair_.a->unregister(region, kSoon));  // asked again, it still is so
}

TEST_P(RegionLife, CancellingSetsTheMemoryFree) {
  const Transfer running = postStuck();
  const Region region = near_->releaseRegion();
  EXPECT_EQ(pair_.a->unregister(region, 10ms).code(), Code::kTimeout);
  running.cancel();
  EXPECT_OK(pair_.a->unregister(region, kSoon));
  EXPECT_EQ(running.wait(kSoon).code(), Code::kCancelled);
}

TEST_P(RegionLife, TheOwnerWaitsForThePeersRunningTransfers) {
  const Transfer running = postStuck();
  const Region region = far_->releaseRegion();
  EXPECT_EQ(pair_.b->unregister(region, 10ms).code(), Code::kTimeout);
  const std::string dump = pair_.b->dump();
  EXPECT_NE(dump.find("closing"), std::string::npos) << dump;
  const Block block = whole();
  const auto refused = put(pair_.toB, {&block, 1});
  EXPECT_EQ(refused.isOk() ? refused->wait(kSoon).code() : refused.status().code(), Code::kClosed);
  takeNotifications(17);
  EXPECT_OK(running.wait(kSoon));
  EXPECT_OK(pair_.b->unregister(region, kSoon));
  EXPECT_TRUE(far_->isAsExpected());
}

TEST_P(RegionLife, AnIdleImportIsGivenBackAtOnceAndNothingMovesAfterwards) {
  EXPECT_OK(pair_.b->unregister(far_->releaseRegion(), kSoon));
  const Block block = whole();
  for (const bool isPut : {true, false}) {
    const auto refused = isPut ? put(pair_.toB, {&block, 1}) : get(pair_.toB, {&block, 1});
    EXPECT_EQ(refused.isOk() ? refused->wait(kSoon).code() : refused.status().code(),
              Code::kClosed);
  }
  EXPECT_TRUE(far_->isAsExpected());
  EXPECT_TRUE(near_->isAsExpected());
  // A new handle learns that the region is gone.
  RemoteRegion again = MUST(pair_.toB.importRegion(remote_.reference().encode()));
  remote_ = RemoteRegion();
  EXPECT_FALSE(again.prepare(kSoon).isOk());
}

TEST_P(RegionLife, SeveralThreadsMayUnregisterTheSame) {
  const Region region = far_->releaseRegion();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      const Status status = pair_.b->unregister(region, kSoon);
      EXPECT_TRUE(status.isOk()) << status.toString();
    });
  for (std::thread& thread : threads) thread.join();
}

TEST_P(RegionLife, TheLastHandleReleasesTheImport) {
  const auto importers = [&] {
    const std::string dump = pair_.b->dump();
    return dump.find("0 transfers, 1 importers, ") != std::string::npos;
  };
  ASSERT_TRUE(importers()) << pair_.b->dump();
  remote_ = RemoteRegion();
  EXPECT_TRUE(soon([&] { return !importers(); })) << pair_.b->dump();
}

TEST_P(RegionLife, ThePeersEndFreesWhatItImported) {
  const Region region = far_->releaseRegion();
  pair_.a.reset();
  near_->abandon();
  EXPECT_OK(pair_.b->unregister(region, kSoon));
}

// Handles of one region come and go in several threads while the owner takes it back: once it has
// it, nobody writes to it any more.
TEST_P(RegionLife, NobodyWritesOnceTheOwnerHasIt) {
  for (int round = 0; round < 10; ++round) {
    auto target = memory(*pair_.b, kBytes, 3);
    const auto reference = target->region().share();
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> moved{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t)
      threads.emplace_back([&] {
        while (!stop.load()) {
          const RemoteRegion remote = MUST(pair_.toB.importRegion(reference));
          const Block block{&near_->region(), 0, &remote, 0, kBytes};
          const auto transfer = put(pair_.toB, {&block, 1});
          if (transfer.isOk() && transfer->wait(kSoon).isOk()) moved.fetch_add(1);
        }
      });
    ASSERT_TRUE(soon([&] { return moved.load() >= 20; }));
    const Region region = target->releaseRegion();
    ASSERT_OK(pair_.b->unregister(region, kSoon));
    std::memset(target->data(), 0x5a, kBytes);
    std::memset(target->shadow(), 0x5a, kBytes);
    const uint64_t before = moved.load();
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
    stop.store(true);
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(target->isAsExpected()) << "round " << round;
    EXPECT_LE(moved.load(), before + 2) << "at most what had ended already is counted late";
  }
}

TEST_P(RegionLife, AThousandCyclesLeaveNothingBehind) {
  const auto cycle = [&] {
    TestMemory target(*pair_.b, 8192, GetParam().shared);
    const RemoteRegion remote = target.importedBy(pair_.toB);
    const Block block{&near_->region(), 0, &remote, 0, 4096};
    ASSERT_OK(MUST(put(pair_.toB, {&block, 1})).wait(kSoon));
  };
#if PEERLANE_THREAD_SANITIZER  // which is about threads, and not about what is resident
  constexpr int kWarm = 20, kCycles = 200;
#else
  // Long enough for the staging ring to have been touched everywhere.
  constexpr int kWarm = 600, kCycles = 1000;
#endif
  for (int i = 0; i < kWarm; ++i) cycle();
  const size_t files = MUST(openFileCount());
  const size_t mappings = countMappings();
  const uint64_t resident = MUST(residentBytes());
  for (int i = 0; i < kCycles; ++i) cycle();
  EXPECT_LE(MUST(openFileCount()), files + 2) << "a release may be under way";
  EXPECT_LE(countMappings(), mappings + 8);
#if !defined(__SANITIZE_ADDRESS__) && !PEERLANE_THREAD_SANITIZER
  EXPECT_LE(MUST(residentBytes()), resident + (1 << 20)) << "1000 cycles, at most 1 MiB";
#else
  (void)resident;
#endif
}

}  // namespace
}  // namespace peerlane
