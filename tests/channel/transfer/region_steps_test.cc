// SPDX-License-Identifier: Apache-2.0
//
// What it costs to register many regions, to announce and import them, and to let go of them grows
// with their number and not with its square, at both sides. Held by the steps that all their
// threads count (CountedMap), because time says nothing on a busy machine.
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "peerlane/core/counted_list.h"
#include "peerlane/os/mappings/free_watch.h"
#include "peerlane/session/peer/peer_core.h"
#include "tests/channel/context_pair.h"

namespace peerlane {
namespace {

// For all of them: seconds, where the sanitizers and other programs have the cores.
constexpr std::chrono::minutes kRegionsSoon{4};
constexpr size_t kFewRegions = 500;
constexpr size_t kManyRegions = 4000;
// What is done one by one is done to this part of them, because each is an exchange between two
// threads, which takes milliseconds on a busy machine.
constexpr size_t kPart = 8;

// As many steps for each region, whatever their number. A walk inside a walk takes eight times
// that; twice that is accepted, because how often threads look is the machine's.
void expectAsManyEach(uint64_t few, uint64_t many) {
  constexpr uint64_t kBesides = 2000;  // bounds what is done without regions
  EXPECT_GE(few, kFewRegions) << "the steps are not counted";
  EXPECT_LE(many, 2 * few * (kManyRegions / kFewRegions) + kBesides);
}

class RegionSteps : public RouteTest {
 protected:
  // Of `work`, on this thread and on the progress threads of both sides.
  uint64_t stepsOf(const std::function<void()>& work) {
    const uint64_t before = allSteps();
    lookedFor_ = 0;
    work();
    return allSteps() - before - lookedFor_;
  }
  // Within stepsOf(), which does not count how often this looks.
  bool comes(const std::function<bool()>& condition) {
    const uint64_t before = Steps::taken();
    const bool hasCome = soon(condition);
    lookedFor_ += Steps::taken() - before;
    return hasCome;
  }
  void registerThem(size_t count) {
    memory_.emplace(*pair_.b, count * kBytes, GetParam().shared);
    for (size_t i = 0; i < count; ++i)
      owned_.push_back(MUST(
          pair_.b->registerRegion(memory_->data() + i * kBytes, kBytes, Access::kRemoteReadWrite)));
  }
  void importThem() { importThem(owned_); }
  void importThem(std::span<const Region> which) {
    for (const Region& owned : which)
      remotes_.push_back(MUST(pair_.toB.importRegion(owned.share())));
    EXPECT_OK(prepareAll(remotes_, kRegionsSoon));
  }
  void unregisterThem() {
    EXPECT_OK(pair_.b->unregister(owned_, kRegionsSoon));
    owned_.clear();
  }
  // The peer's word that it has let go of the region comes in the order in which it does so.
  bool isLent(const Region& region) {
    return !pair_.toA.core()->regions().importers(region.record()->allocation).empty();
  }
  void afterEach() {
    unregisterThem();
    remotes_.clear();
  }
  // Of both numbers of regions.
  void expectSteps(const std::function<uint64_t(size_t)>& stepsAt) {
    const uint64_t few = stepsAt(kFewRegions);
    afterEach();
    const uint64_t many = stepsAt(kManyRegions);
    afterEach();
    expectAsManyEach(few, many);
  }

  static constexpr size_t kBytes = 64;
  std::optional<TestMemory> memory_;
  std::vector<Region> owned_;
  std::vector<RemoteRegion> remotes_;

 private:
  uint64_t lookedFor_ = 0;
  uint64_t allSteps() {
    uint64_t steps = Steps::taken();
    for (const Peer& peer : {pair_.toA, pair_.toB})
      EXPECT_OK(peer.core()->progress().call([&steps] { steps += Steps::taken(); }));
    return steps;
  }
};

INSTANTIATE_TEST_SUITE_P(Routes, RegionSteps, everyRouteAndVerbs(), routeName);

TEST_P(RegionSteps, RegisteringAndUnregistering) {
  expectSteps([this](size_t count) {
    return stepsOf([&] {
      registerThem(count);
      unregisterThem();
    });
  });
}

TEST_P(RegionSteps, Importing) {
  expectSteps([this](size_t count) {
    registerThem(count);
    return stepsOf([this] { importThem(); });
  });
}

TEST_P(RegionSteps, ImportingOneByOne) {
  expectSteps([this](size_t count) {
    registerThem(count);
    const std::span<const Region> all(owned_);
    importThem(all.first(count - count / kPart));
    return kPart * stepsOf([this, last = all.last(count / kPart)] {
             for (const Region& owned : last) {
               remotes_.push_back(MUST(pair_.toB.importRegion(owned.share())));
               EXPECT_OK(remotes_.back().prepare(kSoon));
             }
           });
  });
}

TEST_P(RegionSteps, LettingGoOfImports) {
  expectSteps([this](size_t count) {
    registerThem(count);
    importThem();
    return stepsOf([this] {
      remotes_.clear();
      EXPECT_TRUE(comes([this] { return !isLent(owned_.back()); }));
    });
  });
}

TEST_P(RegionSteps, UnregisteringWhatIsImported) {
  expectSteps([this](size_t count) {
    registerThem(count);
    importThem();
    return stepsOf([this] { unregisterThem(); });
  });
}

TEST_P(RegionSteps, UnregisteringOneByOneWhatIsImported) {
  expectSteps([this](size_t count) {
    registerThem(count);
    importThem();
    return kPart * stepsOf([this, count] {
             for (size_t i = 0; i < count / kPart; ++i)
               EXPECT_OK(pair_.b->unregister(owned_[i], kSoon));
           });
  });
}

// What transfers use is looked at again and again; how often is the machine's, so that the number
// of looks is bounded by time, and no walk follows from each message.
TEST_P(RegionSteps, UnregisteringWhatTransfersUse) {
  constexpr uint64_t kMostEach = 200;
  registerThem(kManyRegions);
  importThem();
  for (const RemoteRegion& remote : remotes_) EXPECT_TRUE(remote.imported()->gate.enter());
  const uint64_t steps = stepsOf([this] {
    EXPECT_EQ(pair_.b->unregister(owned_, std::chrono::nanoseconds(0)).code(), Code::kTimeout);
    // Each is taken back when its gate is closed, and the last one at last.
    EXPECT_TRUE(soon([this] { return !remotes_.back().imported()->gate.open(); }));
    for (const RemoteRegion& remote : remotes_) remote.imported()->gate.leave();
    unregisterThem();
  });
  remotes_.clear();
  EXPECT_GE(steps, kManyRegions);
  EXPECT_LE(steps, kMostEach * kManyRegions);
}

TEST_P(RegionSteps, ClosingAPeer) {
  std::vector<uint64_t> steps;
  for (const size_t count : {kFewRegions, kManyRegions}) {
    registerThem(count);
    importThem();
    steps.push_back(stepsOf([this] {
      pair_.toB.close();
      EXPECT_TRUE(comes([this] { return pair_.toA.state() == "lost" && !isLent(owned_.back()); }));
    }));
    afterEach();
    pair_.toB = MUST(pair_.a->connect(pair_.b->ticket(), kSoon));
    pair_.toA = MUST(pair_.b->accept(kSoon));
  }
  expectAsManyEach(steps[0], steps[1]);
}

// --- What a list does ---

TEST_P(RegionSteps, OneThatIsUsedKeepsNoOther) {
  registerThem(3);
  importThem();
  ASSERT_TRUE(remotes_[0].imported()->gate.enter());
  EXPECT_EQ(pair_.b->unregister(owned_, std::chrono::nanoseconds(0)).code(), Code::kTimeout);
  for (const size_t other : {1, 2})
    EXPECT_TRUE(soon([&] {
      return pair_.toA.core()
                 ->regions()
                 .find(owned_[other].record()->allocation, owned_[other].record()->generation)
                 .status()
                 .code() == Code::kInvalidArgument;
    }));
  remotes_[0].imported()->gate.leave();
  afterEach();
}

TEST_P(RegionSteps, AListWithARegionOfAnotherContextChangesNothing) {
  registerThem(1);
  std::vector<std::byte> mine(kBytes);
  const Region foreign = MUST(pair_.a->registerRegion(mine.data(), kBytes, Access::kLocal));
  const std::vector<Region> both = {owned_[0], foreign};
  EXPECT_EQ(pair_.b->unregister(both, kSoon).code(), Code::kInvalidArgument);
  EXPECT_OK(owned_[0].status());
  EXPECT_OK(pair_.a->unregister(foreign, kSoon));
  afterEach();
}

TEST_P(RegionSteps, OneThatIsGoneKeepsNoOtherFromBeingImported) {
  registerThem(3);
  for (const Region& owned : owned_)
    remotes_.push_back(MUST(pair_.toB.importRegion(owned.share())));
  EXPECT_OK(pair_.b->unregister(owned_[1], kSoon));
  EXPECT_EQ(prepareAll(remotes_, kSoon).code(), Code::kInvalidArgument);
  EXPECT_NE(remotes_[0].imported(), nullptr);
  EXPECT_EQ(remotes_[1].imported(), nullptr);
  EXPECT_NE(remotes_[2].imported(), nullptr);
  afterEach();
}

// --- What nobody else has anything to do with ---

// The progress thread may be in a callback of the program's, and to wake it takes longer than all
// else.
TEST_P(RegionSteps, WhatNobodyUsesIsUnregisteredWithoutTheProgressThread) {
  struct Turnstile {
    std::atomic<bool> isThere{false}, mayGo{false};
  };
  const auto turnstile = std::make_shared<Turnstile>();  // the thread looks at it once more
  pair_.toA.core()->progress().post([turnstile] {
    turnstile->isThere = true;
    while (!turnstile->mayGo) std::this_thread::yield();
  });
  registerThem(2);
  EXPECT_TRUE(soon([&] { return turnstile->isThere.load(); }));
  EXPECT_OK(pair_.b->unregister(owned_, std::chrono::nanoseconds(0)));
  turnstile->mayGo = true;
  EXPECT_EQ(owned_[0].status().code(), Code::kClosed);
  EXPECT_OK(pair_.b->unregister(owned_[0], kSoon)) << "as always, once more";
}

#if !defined(__SANITIZE_THREAD__)  // nothing is watched there (peerlane/os/mappings/free_watch.cc)
// Cached regions are let go of as their memory is freed, page by page.
TEST(FreedRegionSteps, FreesAreNoWalksOverAllRegions) {
  if (const Status probed = FreeWatch::probe(); !probed.isOk()) FAIL() << probed.toString();
  constexpr size_t kPages = 2000, kPage = 4096;
  const ContextPair pair(configFor(kSelf));
  const PeerCore& core = *pair.toB.core();
  const size_t others = core.regions().view().size();
  auto* const base = static_cast<std::byte*>(
      ::mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  for (size_t i = 0; i < kPages; ++i)
    EXPECT_OK(pair.a->regionOf(base + i * kPage, kPage, Access::kRemoteRead).status());
  const auto stepsThere = [&core] {
    uint64_t steps = 0;
    EXPECT_OK(core.progress().call([&steps] { steps = Steps::taken(); }));
    return steps;
  };
  const uint64_t before = stepsThere();
  for (size_t i = 0; i < kPages; ++i) {
    ASSERT_EQ(::munmap(base + i * kPage, kPage), 0);
    // The progress thread looks many times, also where it gets little of the processor.
    if (i % 10 == 0) {
      EXPECT_OK(core.progress().call([] {}));
    }
  }
  EXPECT_TRUE(soon([&] { return core.regions().view().size() == others; }));
  constexpr uint64_t kOfEach = 20;  // to take it out
  EXPECT_LE(stepsThere() - before, kPages * kOfEach);
}
#endif

}  // namespace
}  // namespace peerlane
