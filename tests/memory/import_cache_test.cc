// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/import_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace peerlane {
namespace {

RemoteMemory memory(uint64_t allocation, uint64_t generation) {
  RemoteMemory made;
  made.grant.allocation = allocation;
  made.grant.generation = generation;
  return made;
}

TEST(ImportCache, FindsByAllocationAndGenerationWhileSomebodyUsesIt) {
  std::vector<uint64_t> released;
  ImportCache cache([&](std::unique_ptr<ImportedRegion> region) {
    released.push_back(region->memory.grant.generation);
  });
  EXPECT_EQ(cache.find(1, 10), nullptr);
  auto first = cache.insert(memory(1, 10));
  auto second = cache.insert(memory(1, 11));
  EXPECT_EQ(cache.find(1, 10), first);
  EXPECT_EQ(cache.find(1, 11), second);
  EXPECT_EQ(cache.find(1, 12), nullptr);
  EXPECT_EQ(cache.find(2, 10), nullptr);
  EXPECT_EQ(cache.all().size(), 2u);

  auto again = cache.find(1, 10);
  first.reset();
  EXPECT_TRUE(released.empty()) << "another handle uses it";
  again.reset();
  EXPECT_EQ(released, std::vector<uint64_t>{10});
  EXPECT_EQ(cache.find(1, 10), nullptr);
  ASSERT_EQ(cache.all().size(), 1u);
  EXPECT_EQ(cache.all().front(), second);
}

TEST(ImportCache, ARegionMayOutliveTheCache) {
  int released = 0;
  std::shared_ptr<ImportedRegion> region;
  {
    ImportCache cache([&](const std::unique_ptr<ImportedRegion>&) { ++released; });
    region = cache.insert(memory(3, 1));
  }
  EXPECT_EQ(released, 0);
  EXPECT_TRUE(region->gate.enter());
  region.reset();
  EXPECT_EQ(released, 1);
}

// The same region may be imported anew while the old import still has users; the owner waits for
// both.
TEST(ImportCache, WhatALostLinkReachedIsFoundNoMore) {
  std::vector<std::unique_ptr<ImportedRegion>> released;
  ImportCache cache(
      [&](std::unique_ptr<ImportedRegion> region) { released.push_back(std::move(region)); });
  auto* const lost = reinterpret_cast<Agent*>(0x10);  // looked at by its address alone
  RemoteMemory over = memory(1, 10);
  over.agent = lost;
  auto left = cache.insert(std::move(over));
  auto other = cache.insert(memory(2, 20));
  cache.leave(lost);
  EXPECT_TRUE(left->isLeft);
  EXPECT_FALSE(left->gate.enter());
  EXPECT_EQ(cache.find(1, 10), nullptr);
  EXPECT_EQ(cache.find(2, 20), other);
  EXPECT_TRUE(cache.isDetaching(1, 10)) << "it still has a user";
  auto anew = cache.insert(memory(1, 10));
  EXPECT_EQ(cache.find(1, 10), anew);
  EXPECT_TRUE(cache.isDetaching(1, 10));
  left.reset();
  ASSERT_EQ(released.size(), 1u);
  cache.gone(released.front()->memory.grant);
  EXPECT_FALSE(cache.isDetaching(1, 10));
  EXPECT_EQ(cache.find(1, 10), anew);
}

// Links over several devices may each have attached the region.
TEST(ImportCache, ARegionMayBeThereByEachOfSeveralLinks) {
  std::vector<std::unique_ptr<ImportedRegion>> released;
  ImportCache cache(
      [&](std::unique_ptr<ImportedRegion> region) { released.push_back(std::move(region)); });
  Agent* const agents[] = {reinterpret_cast<Agent*>(0x10), reinterpret_cast<Agent*>(0x20)};
  std::shared_ptr<ImportedRegion> regions[2];
  for (int i : {0, 1}) {
    RemoteMemory over = memory(1, 10);
    over.agent = agents[i];
    regions[i] = cache.insert(std::move(over));
  }
  for (int i : {0, 1}) EXPECT_EQ(cache.find(1, 10, agents[i]), regions[i]);
  EXPECT_NE(cache.find(1, 10), nullptr);
  EXPECT_EQ(cache.find(1, 10, reinterpret_cast<Agent*>(0x30)), nullptr);
  EXPECT_EQ(cache.all(1, 10).size(), 2u);
  EXPECT_FALSE(cache.isDetaching(1, 10));
  cache.leave(agents[0]);
  EXPECT_FALSE(regions[0]->gate.enter());
  EXPECT_TRUE(regions[1]->gate.enter());
  regions[1]->gate.leave();
  EXPECT_EQ(cache.all(1, 10), std::vector{regions[1]});
  EXPECT_TRUE(cache.isDetaching(1, 10));
  for (auto& region : regions) region.reset();
  ASSERT_EQ(released.size(), 2u);
  for (const auto& region : released) {
    EXPECT_TRUE(cache.isDetaching(1, 10));
    cache.gone(region->memory.grant);
  }
  EXPECT_FALSE(cache.isDetaching(1, 10));
}

TEST(ImportCache, EachRegionIsReleasedOnceWhateverThreadsDo) {
  std::atomic<int> inserted{0};
  std::atomic<int> released{0};
  ImportCache cache([&](const std::unique_ptr<ImportedRegion>&) { released.fetch_add(1); });
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < 2000; ++i) {
        auto region = cache.find(i % 3, 0);
        if (!region) {
          region = cache.insert(memory(i % 3, 0));
          inserted.fetch_add(1);
        }
        if (i % 64 == 0) (void)cache.all();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(cache.all().empty());
  EXPECT_EQ(released.load(), inserted.load());
}

// What had its last user is on its way out until it is given back, also where the same region was
// imported again meanwhile.
TEST(ImportCache, WhatIsOnItsWayOutIsKnownUntilItIsGivenBack) {
  std::vector<std::unique_ptr<ImportedRegion>> leaving;
  ImportCache cache(
      [&](std::unique_ptr<ImportedRegion> region) { leaving.push_back(std::move(region)); });
  auto first = cache.insert(memory(1, 10));
  EXPECT_FALSE(cache.isDetaching(1, 10));
  first.reset();
  EXPECT_TRUE(cache.isDetaching(1, 10));
  EXPECT_FALSE(cache.isDetaching(1, 11));
  EXPECT_FALSE(cache.isAnyHeldDetaching()) << "its owner does not wait for that one";
  auto again = cache.insert(memory(1, 10));
  EXPECT_TRUE(cache.isDetaching(1, 10)) << "the first one still is";
  cache.gone(leaving.front()->memory.grant);
  EXPECT_FALSE(cache.isDetaching(1, 10));
  EXPECT_EQ(cache.find(1, 10), again);
  again.reset();
  EXPECT_TRUE(cache.isDetaching(1, 10));
  cache.gone(leaving.back()->memory.grant);
  EXPECT_FALSE(cache.isDetaching(1, 10));
  RemoteMemory held = memory(2, 1);
  held.hold = std::make_shared<PinSlot>();
  (void)cache.insert(std::move(held));
  EXPECT_TRUE(cache.isAnyHeldDetaching());
  cache.gone(leaving.back()->memory.grant);
  EXPECT_FALSE(cache.isAnyHeldDetaching());
}

class SlowPin final : public DevicePin {
 public:
  explicit SlowPin(std::function<void()>& end) : end_(end) {}

 private:
  void whenEnded(std::function<void()> done) override { end_ = std::move(done); }
  std::function<void()>& end_;
};

TEST(ImportCache, ARegionIsLetGoOfOnceWhatHeldItSaysSo) {
  std::function<void()> end;
  {
    auto region = std::make_shared<ImportedRegion>();
    region->memory.hold = std::make_shared<PinSlot>();
    ASSERT_TRUE(region->memory.hold
                    ->ensure([&] {
                      return Result<std::unique_ptr<DevicePin>>(std::make_unique<SlowPin>(end));
                    })
                    .isOk());
    ASSERT_TRUE(region->gate.enter());
    region->gate.close();
    EXPECT_FALSE(ImportedRegion::letGo(region));
    EXPECT_FALSE(end) << "a transfer is under way";
    region->gate.leave();
    EXPECT_FALSE(ImportedRegion::letGo(region));
    ASSERT_TRUE(end);
    EXPECT_FALSE(ImportedRegion::letGo(region));
    end();
    EXPECT_TRUE(ImportedRegion::letGo(region));
    end = nullptr;
    auto bare = std::make_shared<ImportedRegion>();
    bare->gate.close();
    EXPECT_TRUE(ImportedRegion::letGo(bare)) << "nothing holds it";
  }
}

}  // namespace
}  // namespace peerlane
