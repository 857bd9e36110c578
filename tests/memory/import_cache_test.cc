// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/import_cache.h"

#include <gtest/gtest.h>

#include <atomic>
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

}  // namespace
}  // namespace peerlane
