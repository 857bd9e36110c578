// SPDX-License-Identifier: Apache-2.0
//
// RegistrationCache over host memory: one registration for a mapping, others for others, for peers
// of what was asked for alone, and none for memory that was freed. Of GPU memory:
// tests/gpu/p2p_device_test.cc.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "peerlane/core/counted_list.h"
#include "peerlane/memory/host_provider.h"
#include "peerlane/memory/registration_cache.h"
#include "tests/core/expect_ok.h"
#include "tests/os/quiet_place.h"

namespace peerlane {
namespace {

constexpr size_t kCapacity = 8;

Status watchNothing(const RegistrationCache::Record&) {
  return Status::ok();
}

struct Cache {
  Cache() { EXPECT_OK(providers.add(std::make_shared<HostProvider>()).status()); }
  Result<RegistrationCache::Record> find(void* memory, uint64_t bytes,
                                         Access access = Access::kLocal) {
    return cache.find(static_cast<std::byte*>(memory), bytes, access, stale);
  }
  RegionTable regions;
  MemoryProviders providers;
  RegistrationCache cache{regions, providers, watchNothing, kCapacity};
  std::vector<RegistrationCache::Record> stale;
};

// A mapping with holes on both sides.
struct Mapping {
  explicit Mapping(size_t size) : bytes(size) {
    whole = static_cast<std::byte*>(::mmap(quietPlace(bytes + 8192), bytes + 8192, PROT_NONE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    base = whole + 4096;
    EXPECT_EQ(::mprotect(base, bytes, PROT_READ | PROT_WRITE), 0);
  }
  ~Mapping() { ::munmap(whole, bytes + 8192); }
  size_t bytes;
  std::byte *whole, *base;
};

TEST(RegistrationCache, OneRegistrationServesAMapping) {
  Cache cache;
  const Mapping one(64 << 10), other(64 << 10);
  const auto first = MUST(cache.find(one.base + 100, 7));
  EXPECT_EQ(first->base, one.base);
  EXPECT_EQ(first->bytes, one.bytes);
  EXPECT_EQ(MUST(cache.find(one.base, one.bytes)), first);
  EXPECT_EQ(MUST(cache.find(one.base + one.bytes - 1, 1)), first);
  EXPECT_NE(MUST(cache.find(other.base, 1)), first);
  EXPECT_EQ(MUST(cache.find(one.base, 1)), first);
  EXPECT_TRUE(cache.stale.empty());
}

TEST(RegistrationCache, WhatIsNotMappedIsRefused) {
  Cache cache;
  const Mapping one(64 << 10);
  EXPECT_EQ(cache.find(one.base + one.bytes, 1).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(cache.find(one.base, one.bytes + 1).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(cache.find(nullptr, 1).status().code(), Code::kInvalidArgument);
}

// As HostProvider; but when it has named an extent, another thread unmaps the last page of it.
class ShrinkingProvider final : public MemoryProvider {
 public:
  std::string_view name() const override { return "shrinking"; }
  Result<MemoryClaim> acquire(const void* pointer, size_t bytes, uint64_t ticket) override {
    return host_.acquire(pointer, bytes, ticket);
  }
  Result<std::optional<MemoryExtent>> extentOf(const void* pointer, size_t bytes) override {
    auto extent = host_.extentOf(pointer, bytes);
    if (extent.isOk() && *extent)
      std::thread([&] { ::munmap((*extent)->base + (*extent)->bytes - 4096, 4096); }).join();
    return extent;
  }
  Result<std::unique_ptr<Allocation>> allocate(size_t bytes, const AllocateOptions& o) override {
    return host_.allocate(bytes, o);
  }

 private:
  HostProvider host_;
};

TEST(RegistrationCache, AMappingThatShrinksMeanwhileStillServesWhatIsLeft) {
  RegionTable regions;
  MemoryProviders providers;
  EXPECT_OK(providers.add(std::make_shared<ShrinkingProvider>()).status());
  RegistrationCache cache(regions, providers, watchNothing, kCapacity);
  std::vector<RegistrationCache::Record> stale;
  const Mapping one(64 << 10);
  const auto record = MUST(cache.find(one.base + 100, 7, Access::kLocal, stale));
  EXPECT_EQ(record->base, one.base + 100);
  EXPECT_EQ(record->bytes, 7u);
  const auto lost = one.base + one.bytes - 4096;
  const Status refused = cache.find(lost - 4096, 8192, Access::kLocal, stale).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
}

#if !defined(__SANITIZE_THREAD__)  // nothing is watched there (peerlane/os/mappings/free_watch.cc)
TEST(RegistrationCache, OfHostMemoryPeersGetWhatWasAskedForAlone) {
  if (const Status probed = FreeWatch::probe(); !probed.isOk()) FAIL() << probed.toString();
  Cache cache;
  const Mapping one(64 << 10);
  const auto local = MUST(cache.find(one.base, 1));
  const auto lent = MUST(cache.find(one.base + 100, 7, Access::kRemoteRead));
  EXPECT_EQ(lent->base, one.base + 100);
  EXPECT_EQ(lent->bytes, 7u);
  EXPECT_EQ(MUST(cache.find(one.base + 101, 6, Access::kRemoteRead)), lent);
  EXPECT_NE(MUST(cache.find(one.base, 107, Access::kRemoteRead)), lent);
  EXPECT_EQ(MUST(cache.find(one.base + 200, 1)), local);
}

TEST(RegistrationCache, HostMemoryWhoseFreesNobodySeesIsLentToNobody) {
  if (const Status probed = FreeWatch::probe(); !probed.isOk()) FAIL() << probed.toString();
  Cache cache;
  void* const shared =
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const Status refused = cache.find(shared, 1, Access::kRemoteRead).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_NE(refused.message().find("frees of shared memory cannot be watched"), std::string::npos)
      << refused.toString();
  EXPECT_EQ(cache.stale.size(), 1u);
  EXPECT_OK(cache.find(shared, 1).status());
  ::munmap(shared, 4096);
}

// What is local is a mapping of which the rest is used on; what is lent is all gone.
TEST(RegistrationCache, WhatWasFreedIsNotFoundAgain) {
  if (const Status probed = FreeWatch::probe(); !probed.isOk()) FAIL() << probed.toString();
  Cache cache;
  const Mapping one(64 << 10);
  auto local = MUST(cache.find(one.base, 1));
  EXPECT_OK(local->frees.watch(*local));
  const auto lent = MUST(cache.find(one.base + 16384, 4096, Access::kRemoteReadWrite));
  ASSERT_EQ(::munmap(one.base + 8192, 4096), 0);
  const auto next = MUST(cache.find(one.base, 1));
  EXPECT_NE(next, local);
  EXPECT_TRUE(local->gate.open()) << "who has it uses the rest";
  EXPECT_EQ(MUST(cache.find(one.base + 16384, 4096, Access::kRemoteReadWrite)), lent);
  ASSERT_EQ(::munmap(one.base + 16384, 4096), 0);
  FreeWatch::settle();  // as whatever finds or asks a region does
  EXPECT_TRUE(lent->gate.isRevoked());
  EXPECT_FALSE(lent->gate.open());
  EXPECT_EQ(cache.find(one.base + 16384, 4096, Access::kRemoteReadWrite).status().code(),
            Code::kInvalidArgument);
  // It leaves the cache when nobody has it any more.
  const void* const gone = local.get();
  local.reset();
  (void)MUST(cache.find(one.base + 32768, 4096, Access::kRemoteRead));
  EXPECT_TRUE(std::any_of(cache.stale.begin(), cache.stale.end(),
                          [gone](const auto& record) { return record.get() == gone; }));
}

// A look-up by any thread after the call that frees finds nothing, also while others free.
TEST(RegistrationCache, ManyThreadsFreeAndLook) {
  if (const Status probed = FreeWatch::probe(); !probed.isOk()) FAIL() << probed.toString();
  RegionTable regions;
  MemoryProviders providers;
  EXPECT_OK(providers.add(std::make_shared<HostProvider>()).status());
  RegistrationCache cache(regions, providers, watchNothing);
  std::atomic<int> wrong{0};
  const auto free = [&] {
    std::vector<RegistrationCache::Record> stale;
    for (int round = 0; round < 50; ++round) {
      const Mapping one(64 << 10);
      const auto first = cache.find(one.base, 4096, Access::kRemoteReadWrite, stale);
      if (!first.isOk() || !(*first)->gate.open()) {
        ++wrong;
        continue;
      }
      (void)::mmap(one.base, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                   -1, 0);
      const auto second = cache.find(one.base, 4096, Access::kRemoteReadWrite, stale);
      wrong += !second.isOk() || *second == *first || !(*first)->gate.isRevoked();
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back(free);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}
#endif

TEST(RegistrationCache, OneThatIsTakenBackIsNotFoundAgain) {
  Cache cache;
  const Mapping one(64 << 10);
  const auto first = MUST(cache.find(one.base, 1));
  first->gate.close();
  EXPECT_NE(MUST(cache.find(one.base, 1)), first);
}

TEST(RegistrationCache, TheLongestUnusedOneGoesWhenItIsFull) {
  Cache cache;
  std::vector<std::unique_ptr<Mapping>> mappings;
  for (size_t i = 0; i < kCapacity + 1; ++i) mappings.push_back(std::make_unique<Mapping>(4096));
  // The first one is the oldest, but somebody is about to use it.
  const auto held = MUST(cache.find(mappings[0]->base, 1));
  for (size_t i = 1; i < kCapacity; ++i) (void)MUST(cache.find(mappings[i]->base, 1));
  EXPECT_TRUE(cache.stale.empty());
  (void)MUST(cache.find(mappings.back()->base, 1));
  ASSERT_EQ(cache.stale.size(), 1u);
  EXPECT_EQ(cache.stale.front()->base, mappings[1]->base);
  EXPECT_EQ(MUST(cache.find(mappings[0]->base, 1)), held);
}

// As HostProvider, but each page is by itself.
class PagesProvider final : public MemoryProvider {
 public:
  std::string_view name() const override { return "pages"; }
  Result<MemoryClaim> acquire(const void* pointer, size_t bytes, uint64_t ticket) override {
    return host_.acquire(pointer, bytes, ticket);
  }
  Result<std::optional<MemoryExtent>> extentOf(const void* pointer, size_t bytes) override {
    return std::optional(MemoryExtent{static_cast<std::byte*>(const_cast<void*>(pointer)), bytes});
  }
  Result<std::unique_ptr<Allocation>> allocate(size_t bytes, const AllocateOptions& o) override {
    return host_.allocate(bytes, o);
  }

 private:
  HostProvider host_;
};

// By steps, because time says nothing on a busy machine. Also where all are in use, or it is full.
TEST(RegistrationCache, AddingManyTakesNoWalkEach) {
  constexpr size_t kFew = 500, kMany = 4000, kOfCache = 2000;
  const auto steps = [](size_t count, bool areUsed) {
    RegionTable regions;
    MemoryProviders providers;
    EXPECT_OK(providers.add(std::make_shared<PagesProvider>()).status());
    RegistrationCache cache(regions, providers, watchNothing, kOfCache);
    const Mapping pages(count * 4096);
    std::vector<RegistrationCache::Record> stale, used;
    const uint64_t before = Steps::taken();
    for (size_t i = 0; i < count; ++i) {
      auto record = MUST(cache.find(pages.base + i * 4096, 4096, Access::kLocal, stale));
      if (areUsed) used.push_back(std::move(record));
    }
    EXPECT_EQ(stale.empty(), areUsed || count <= kOfCache);
    return Steps::taken() - before;
  };
  for (const bool areUsed : {false, true})
    EXPECT_LE(steps(kMany, areUsed), 2 * (kMany / kFew) * steps(kFew, areUsed)) << areUsed;
}

}  // namespace
}  // namespace peerlane
