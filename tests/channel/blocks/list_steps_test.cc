// SPDX-License-Identifier: Apache-2.0
//
// What a post of many regions costs grows with their number and not with its square, in each of its
// steps: check, import, way, rights, gates, lowering, turns, end. Held by the steps that both
// threads of the posting side count (CountedList), because time says nothing on a busy machine.
#include <algorithm>
#include <chrono>
#include <functional>
#include <random>

#include "peerlane/channel/transfer/plan.h"
#include "peerlane/channel/transfer/transfer.h"
#include "peerlane/core/counted_list.h"
#include "peerlane/session/peer/peer_core.h"
#include "tests/channel/context_pair.h"

namespace peerlane {
namespace {

// For all of them to be imported: seconds, where the sanitizers and other programs have the cores.
constexpr std::chrono::minutes kAllSoon{4};
constexpr size_t kFew = 500;
constexpr size_t kMany = 4000;
constexpr size_t kPieceBytes = 64;

// As many steps for each block, whatever their number. A walk inside a walk takes eight times that;
// twice that is accepted, because how often threads look that wait for imports is the machine's.
void expectLinear(uint64_t few, uint64_t many) {
  constexpr uint64_t kBesides = 2000;  // bounds what a post takes that has no blocks
  EXPECT_GE(few, kFew) << "the steps are not counted";
  EXPECT_LE(many, 2 * few * (kMany / kFew) + kBesides);
}

// Regions of one piece each at both sides, and a block for each pair of them.
class Pieces {
 public:
  Pieces(ContextPair& pair, size_t count, bool shared, bool prepared)
      : pair_(pair),
        from_(count * kPieceBytes, std::byte{7}),
        to_(*pair.b, count * kPieceBytes, shared) {
    for (size_t i = 0; i < count; ++i) {
      locals_.push_back(MUST(
          pair.a->registerRegion(from_.data() + i * kPieceBytes, kPieceBytes, Access::kLocal)));
      owned_.push_back(MUST(pair.b->registerRegion(to_.data() + i * kPieceBytes, kPieceBytes,
                                                   Access::kRemoteReadWrite)));
      remotes_.push_back(MUST(pair.toB.importRegion(owned_.back().share())));
    }
    if (!prepared) return;
    EXPECT_OK(prepareAll(remotes_, kAllSoon));
  }
  ~Pieces() {
    remotes_.clear();
    for (const Region& local : locals_) EXPECT_OK(pair_.a->unregister(local, kSoon));
    for (const Region& owned : owned_) EXPECT_OK(pair_.b->unregister(owned, kSoon));
  }
  Pieces(const Pieces&) = delete;
  Pieces& operator=(const Pieces&) = delete;

  std::vector<Block> blocks() const {
    std::vector<Block> all;
    for (size_t i = 0; i < locals_.size(); ++i)
      all.push_back({&locals_[i], 0, &remotes_[i], 0, kPieceBytes});
    return all;
  }
  bool hasArrived() const {
    return firstDifference(from_.data(), to_.data(), from_.size()) == from_.size();
  }

 private:
  ContextPair& pair_;
  std::vector<std::byte> from_;
  const TestMemory to_;
  std::vector<Region> locals_;
  std::vector<Region> owned_;
  std::vector<RemoteRegion> remotes_;
};

class ListSteps : public RouteTest {
 protected:
  // Of `work`, on this thread and on the progress thread of the posting side.
  uint64_t stepsOf(const std::function<void()>& work) {
    const uint64_t before = allSteps();
    work();
    return allSteps() - before;
  }
  uint64_t putSteps(const std::vector<Block>& blocks) {
    return stepsOf([&] {
      const Transfer posted = MUST(put(pair_.toB, blocks));
      EXPECT_OK(posted.wait(kAllSoon));
    });
  }

 private:
  uint64_t allSteps() {
    uint64_t others = 0;
    EXPECT_OK(pair_.toB.core()->progress().call([&others] { others = Steps::taken(); }));
    return Steps::taken() + others;
  }
};

INSTANTIATE_TEST_SUITE_P(Routes, ListSteps, everyRouteAndVerbs(), routeName);

TEST_P(ListSteps, APutOfManyRegions) {
  const Pieces few(pair_, kFew, GetParam().shared, true);
  const Pieces many(pair_, kMany, GetParam().shared, true);
  expectLinear(putSteps(few.blocks()), putSteps(many.blocks()));
  EXPECT_TRUE(few.hasArrived());
  EXPECT_TRUE(many.hasArrived()) << "wrong bytes";
}

// The blocks name the regions in an order of their own, and each of them again and again.
TEST_P(ListSteps, RegionsThatAreNamedInAnyOrder) {
  const auto steps = [this](size_t count) {
    const Pieces pieces(pair_, count, GetParam().shared, true);
    std::vector<Block> blocks = pieces.blocks();
    const size_t whole = blocks.size();
    for (size_t i = 0; i < whole; ++i) {
      blocks[i].bytes = kPieceBytes / 2;
      blocks.push_back(blocks[i]);
      blocks.back().localOffset = blocks.back().remoteOffset = kPieceBytes / 2;
    }
    std::shuffle(blocks.begin(), blocks.end(), std::minstd_rand(7));
    const uint64_t taken = putSteps(blocks);
    EXPECT_TRUE(pieces.hasArrived()) << "wrong bytes";
    return taken;
  };
  const uint64_t few = steps(kFew);
  expectLinear(few, steps(kMany));
}

// Threads that wait look again after each import that has come.
TEST_P(ListSteps, APutOfManyRegionsThatAreNotImported) {
  const Pieces few(pair_, kFew, GetParam().shared, false);
  const Pieces many(pair_, kMany, GetParam().shared, false);
  expectLinear(putSteps(few.blocks()), putSteps(many.blocks()));
  EXPECT_TRUE(many.hasArrived()) << "wrong bytes";
}

TEST_P(ListSteps, APlanOfManyRegions) {
  const auto steps = [this](size_t count) {
    const Pieces pieces(pair_, count, GetParam().shared, false);
    const std::vector<Block> blocks = pieces.blocks();
    const uint64_t taken = stepsOf([&] {
      PlanOptions options;
      options.timeout = kAllSoon;
      Plan plan = MUST(Plan::create(pair_.toB, Direction::kPut, blocks, options));
      EXPECT_OK(MUST(plan.post()).wait(kSoon));
    });
    EXPECT_TRUE(pieces.hasArrived()) << "wrong bytes";
    return taken;
  };
  const uint64_t few = steps(kFew);
  expectLinear(few, steps(kMany));
}

// Of memory in which no byte of one side is the other side's, nobody looks at each block for that.
TEST(ListOfOneProcess, BlocksOfTwoRegionsOfOneProcess) {
  ContextPair pair(configFor(kSelf));
  TestMemory from(*pair.a, kMany * kPieceBytes, false);
  TestMemory to(*pair.b, kMany * kPieceBytes, false);
  const RemoteRegion remote = to.importedBy(pair.toB);
  EXPECT_OK(remote.prepare(kSoon));
  std::vector<Block> blocks;
  for (size_t i = 0; i < kMany; ++i)
    blocks.push_back({&from.region(), i * kPieceBytes, &remote, i * kPieceBytes, kPieceBytes});
  const uint64_t before = Steps::taken();
  EXPECT_OK(MUST(put(pair.toB, blocks)).wait(kSoon));
  const uint64_t steps = Steps::taken() - before;
  EXPECT_LT(steps, kMany / 2);
  std::memcpy(to.shadow(), from.data(), from.bytes());
  EXPECT_TRUE(to.isAsExpected());
}

}  // namespace
}  // namespace peerlane
