// SPDX-License-Identifier: Apache-2.0
//
// An operation by itself: what is asked of it while the engine falls asleep.
#include "peerlane/channel/pending.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <random>

namespace peerlane {
namespace {

using namespace std::chrono_literals;
using Clock = Progress::Clock;

// Idle until it is cancelled. Its turns and the thread that cancels store to the same lines, so
// that the store of a cancel stands behind others for as long as these take to cross.
struct alignas(64) Line {
  std::atomic<uint64_t> word{0};
};
std::array<Line, 24> lines;
void touchLines() {
  for (Line& line : lines) line.word.store(1, std::memory_order_relaxed);
}

class Idle final : public Pending, public Task {
 public:
  using Pending::Pending;
  Turn turn() override {
    if (cancelled()) {
      markEnded(Status(Code::kCancelled, "cancelled"));
      return Turn::kFinished;
    }
    touchLines();
    turns.store(turns.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return Turn::kIdle;
  }
  std::atomic<uint64_t> turns{0};
};

// The thread that cancels stores and then looks whether the engine sleeps; the engine says that it
// sleeps and then looks. One of the two sees the other, whatever the moment.
TEST(Pending, ACancelIsSeenWhileTheEngineFallsAsleep) {
  auto progress = Progress::create(0ns).value();
  std::minstd_rand random(1);
  const uint64_t rounds = std::getenv("PEERLANE_SOAK") != nullptr ? 2'000'000 : 60'000;
  const auto waitFor = [](const auto& is) {
    for (const auto limit = Clock::now() + 20s; !is();)
      if (Clock::now() > limit) return false;
    return true;
  };
  for (uint64_t i = 0; i < rounds; ++i) {
    auto operation = std::make_shared<Idle>(*progress);
    progress->add(operation);
    ASSERT_TRUE(waitFor([&] { return operation->turns.load(std::memory_order_relaxed) != 0; }));
    for (uint32_t pause = random() % 200; pause > 0; --pause)
      std::atomic_signal_fence(std::memory_order_seq_cst);
    touchLines();
    operation->cancel();
    ASSERT_TRUE(waitFor([&] { return operation->done(); })) << "lost in round " << i;
  }
}

// Each is told once, in order, whether it asked before the end or after it.
TEST(Pending, TellsEverybodyWhoAsked) {
  auto progress = Progress::create(0ns).value();
  auto operation = std::make_shared<Idle>(*progress);
  std::vector<int> told;
  for (int i = 0; i < 3; ++i) operation->onEnd([&told, i](const Status&) { told.push_back(i); });
  progress->add(operation);
  operation->cancel();
  EXPECT_EQ(operation->wait(20s).code(), Code::kCancelled);
  ASSERT_TRUE(progress->call([] {}).isOk());  // behind the callbacks
  operation->onEnd([&told](const Status& status) {
    told.push_back(status.code() == Code::kCancelled ? 3 : -1);
  });
  EXPECT_EQ(told, (std::vector<int>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace peerlane
