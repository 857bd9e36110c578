// SPDX-License-Identifier: Apache-2.0
//
// Memory taken back while another process is busy with it, and very often: afterwards it is free,
// and nothing is left of it.
#include <sys/resource.h>

#include <atomic>
#include <future>
#include <span>
#include <string>
#include <vector>

#include "peerlane/channel/transfer/plan.h"
#include "peerlane/core/limits.h"
#include "peerlane/os/process.h"
#include "peerlane/session/peer/peer_core.h"
#include "tests/faults/intruder.h"
#include "tests/faults/surviving_side.h"
#include "tests/progress/standing_callback.h"

namespace peerlane {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBytes = 8 << 20;

class Unregister : public testing::TestWithParam<const char*> {
 protected:
  Unregister() : side_(configOfRoute(GetParam()), GetParam(), kBytes) {}
  SurvivingSide side_;
};

INSTANTIATE_TEST_SUITE_P(Routes, Unregister, testing::Values("mapped", "cma", "ring", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

// The bytes stay mapped here by another registration of the same memory, so that a late write
// shows.
TEST_P(Unregister, WhileThePeerPutsNothingIsWrittenAfterwards) {
  std::vector<std::byte> heap(kBytes);
  Region holder;
  std::byte* bytes = heap.data();
  if (std::string(GetParam()) == "mapped") {
    holder = MUST(side_.context->allocate(kBytes));
    bytes = holder.data();
  }
  Region region = MUST(side_.context->registerRegion(bytes, kBytes, Access::kRemoteReadWrite));
  for (const bool puts : {true, false}) {
    tellReference(side_.peer, 3, region);
    ASSERT_EQ(side_.other->ask("turn to 3"), "turned");
    ASSERT_EQ(side_.other->ask(puts ? "put for ever" : "get for ever"), "moving");
    if (puts) {
      const volatile std::byte* probe = bytes + kBytes / 2;
      const std::byte first = *probe;
      ASSERT_TRUE(soon([&] { return *probe != first; }));
    }
    ASSERT_OK(side_.context->unregister(region, kSoon));
    std::memset(bytes, 0xee, kBytes);
    EXPECT_EQ(side_.other->line(), "ended Closed");
    EXPECT_TRUE(isFilledWith(bytes, kBytes, 0xee));
    region = MUST(side_.context->registerRegion(bytes, kBytes, Access::kRemoteReadWrite));
  }
  EXPECT_OK(side_.context->unregister(region, kSoon));
}

// Nobody can say who still uses the region, and the caller's time is kept all the same.
TEST_P(Unregister, WhileACallbackStandsTheCallersTimeIsKept) {
  std::vector<std::byte> heap(4096);
  const Region region =
      MUST(side_.context->registerRegion(heap.data(), heap.size(), Access::kRemoteReadWrite));
  ASSERT_TRUE(region.record()->gate.enter()) << "what nobody uses needs no progress thread";
  StandingCallback stands(side_.peer.core()->progress());
  auto call = std::async(std::launch::async, [&] {
    return side_.context->unregister(region, std::chrono::milliseconds(20));
  });
  const bool isBack = call.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  stands.goOn();
  region.record()->gate.leave();
  ASSERT_TRUE(isBack);
  const Status status = call.get();
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_NE(status.message().find("stands in a callback"), std::string::npos) << status.toString();
  EXPECT_OK(side_.context->unregister(region, kSoon));
}

// How often this thread has gone to sleep.
long sleeps() {
  rusage used{};
  EXPECT_EQ(::getrusage(RUSAGE_THREAD, &used), 0);
  return used.ru_nvcsw;
}

// A call that waits for a transfer, or a peer, looks seldom: a look in every millisecond would keep
// this thread and the progress thread busy for as long. Counted by the sleeps between them.
TEST_P(Unregister, ALongWaitLooksSeldom) {
  std::vector<std::byte> heap(4096);
  const Region region =
      MUST(side_.context->registerRegion(heap.data(), heap.size(), Access::kRemoteReadWrite));
  ASSERT_TRUE(region.record()->gate.enter());
  const long before = sleeps();
  EXPECT_EQ(side_.context->unregister(region, std::chrono::milliseconds(400)).code(),
            Code::kTimeout);
  EXPECT_LT(sleeps() - before, 150) << "400 looks of a millisecond each";
  region.record()->gate.leave();
  EXPECT_OK(side_.context->unregister(region, kSoon));
}

// One last look is for all of them. Counted, because a look of 100 ms for each, by two sleeps, is
// no more than a slow machine's to a clock.
TEST_P(Unregister, WhileACallbackStandsManyTakeNoLongerThanOne) {
  constexpr size_t kRegions = 40;
  std::vector<std::byte> heap(kRegions * 64);
  std::vector<Region> regions;
  for (size_t i = 0; i < kRegions; ++i) {
    regions.push_back(
        MUST(side_.context->registerRegion(heap.data() + i * 64, 64, Access::kRemoteReadWrite)));
    ASSERT_TRUE(regions.back().record()->gate.enter());
  }
  StandingCallback stands(side_.peer.core()->progress());
  const auto sleepsFor = [&](std::span<const Region> some) {
    const long before = sleeps();
    const Status status = side_.context->unregister(some, std::chrono::nanoseconds(0));
    EXPECT_EQ(status.code(), Code::kTimeout);
    const std::string name = "region " + std::to_string(some.front().record()->allocation);
    EXPECT_NE(status.message().find(name), std::string::npos) << status.toString();
    EXPECT_EQ(status.message().find("and 38 more") != std::string::npos, some.size() > 1)
        << status.toString();
    return sleeps() - before;
  };
  const long one = sleepsFor({regions.data(), 1});
  const long many = sleepsFor({regions.data() + 1, kRegions - 1});
  stands.goOn();
  EXPECT_GE(one, 1) << "the sleeps are not counted";
  EXPECT_LT(many, long{kRegions}) << "one took " << one;
  for (const Region& region : regions) region.record()->gate.leave();
  EXPECT_OK(side_.context->unregister(regions, kSoon));
  for (const Region& region : regions) EXPECT_EQ(region.status().code(), Code::kClosed);
}

// A post that is refused looks at the region too, for a moment.
TEST_P(Unregister, RefusedPostsHoldNothingUp) {
  for (int i = 0; i < 20; ++i) {
    std::vector<std::byte> heap(4096);
    const Region region =
        MUST(side_.context->registerRegion(heap.data(), heap.size(), Access::kLocal));
    ASSERT_OK(side_.theirs.prepare(kSoon));
    const std::vector<Block> blocks{{&region, 0, &side_.theirs, 0, heap.size()}};
    Plan plan = MUST(Plan::create(side_.peer, Direction::kPut, blocks));
    std::atomic<bool> isRefused{false}, enough{false};
    std::thread poster([&] {
      while (!enough) {
        const auto posted = plan.post();
        if (posted.isOk())
          (void)posted->wait(kSoon);
        else if (posted.status().code() == Code::kClosed)
          isRefused = true;
      }
    });
    EXPECT_OK(side_.context->unregister(region, kSoon));
    EXPECT_TRUE(soon([&] { return isRefused.load(); }));
    enough = true;
    poster.join();
  }
}

// The local end of our own transfers.
TEST_P(Unregister, WhileWePutRunningOnesFinishAndNewOnesAreRefused) {
  ASSERT_OK(side_.theirs.prepare(kSoon));
  std::atomic<uint64_t> done{0};
  std::atomic<Code> last{Code::kOk};
  std::thread poster([&] {
    for (Status status; status.isOk(); done.fetch_add(1)) {
      status = side_.move(done % 2 == 0 ? Direction::kPut : Direction::kGet);
      last = status.code();
    }
  });
  EXPECT_TRUE(soon([&] { return done >= 3; }));
  EXPECT_OK(side_.context->unregister(side_.memory->region(), kSoon));
  poster.join();
  EXPECT_EQ(last, Code::kClosed);
  EXPECT_EQ(side_.peer.state(), "ready");
}

TEST_P(Unregister, AThousandTimesLeavesNothing) {
  const bool ours = std::string(GetParam()) == "cma" || std::string(GetParam()) == "ring";
  constexpr int kWarm = 20;
  constexpr int kTimes = 1000;
  std::string theirs;
  std::vector<std::byte> heap(4096);
  Footprint before;
  Footprint after;
  uint64_t resident = 0;
  for (int i = 0; i < kWarm + kTimes; ++i) {
    if (i == 0) side_.other->tell("cycles " + std::to_string(kWarm));
    if (i == kWarm) {
      ASSERT_EQ(side_.other->line(), "cycled");
      theirs = side_.other->ask("footprint");
      before = Footprint::atRest(*side_.context, std::this_thread::yield);
      side_.other->tell("cycles " + std::to_string(kTimes));
      resident = MUST(residentBytes());
    }
    const Region region =
        ours ? MUST(side_.context->registerRegion(heap.data(), 4096, Access::kRemoteReadWrite))
             : MUST(side_.context->allocate(4096));
    tellReference(side_.peer, 2, region);
    ASSERT_OK(side_.peer.receiveMessage(2, kSoon).status());
    ASSERT_OK(side_.context->unregister(region, kSoon));
  }
  EXPECT_EQ(side_.other->line(), "cycled");
  EXPECT_TRUE(soon([&] { return (after = Footprint::of(*side_.context)) == before; }))
      << "before: " << before << "\nafter: " << after;
#if !defined(__SANITIZE_ADDRESS__)  // it keeps what was freed
  EXPECT_LT(MUST(residentBytes()), resident + (2 << 20));
#else
  (void)resident;
#endif
  // The importer's side, too.
  EXPECT_TRUE(soon([&] { return side_.other->ask("footprint") == theirs; }))
      << side_.other->ask("footprint") << "; was " << theirs;
}

// A peer is asked to let go of so many regions at once; of the next one when it has confirmed one.
TEST(UnregisterMany, OnePeerIsAskedForAFewAtOnce) {
  constexpr uint32_t kMore = 20;
  constexpr uint32_t kRegions = limits::kRevocations + kMore;
  Config config;
  config.links = {"tcp"};
  const auto context = MUST(Context::create({config, {"127.0.0.1:0"}, ""}));
  Intruder holder(context->addresses().back());
  holder.enter(MUST(Secret::fromText(context->secretText())));
  holder.becomePeer();
  const Peer peer = MUST(context->accept(kSoon));
  std::vector<std::byte> memory(kRegions);
  std::vector<Region> regions;
  for (uint32_t i = 0; i < kRegions; ++i) {
    regions.push_back(MUST(context->registerRegion(&memory[i], 1, Access::kRemoteReadWrite)));
    const RegionReference reference = MUST(RegionReference::decode(regions.back().share()));
    holder.say(
        control::ImportRequest{i + 1, reference.allocation, reference.generation, 3, {"tcp"}});
    ASSERT_EQ(holder.hear<control::ImportReply>().code, Code::kOk);
  }
  for (const Region& region : regions)
    EXPECT_EQ(context->unregister(region, std::chrono::nanoseconds(0)).code(), Code::kTimeout);
  std::vector<uint64_t> asked;
  for (size_t i = 0; i < limits::kRevocations; ++i)
    asked.push_back(holder.hear<control::Revoke>().request);
  EXPECT_TRUE(holder.isQuiet());
  for (size_t i = 0; i < kMore; ++i) {
    holder.say(control::RevokeDone{asked[i], Code::kOk});
    asked.push_back(holder.hear<control::Revoke>().request);
  }
  EXPECT_TRUE(holder.isQuiet());
  for (size_t i = kMore; i < asked.size(); ++i)
    holder.say(control::RevokeDone{asked[i], Code::kOk});
  for (const Region& region : regions) EXPECT_OK(context->unregister(region, kSoon));
  EXPECT_EQ(peer.state(), "ready");
}

}  // namespace
}  // namespace peerlane
