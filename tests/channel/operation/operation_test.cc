// SPDX-License-Identifier: Apache-2.0
//
// An operation by itself: what is asked of it while the engine falls asleep.
#include "peerlane/channel/operation/operation.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/progress/standing_callback.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;
using Clock = Progress::Clock;

// Stores that miss every cache: what the same thread stores afterwards becomes visible only after
// them, half a microsecond later, while its loads go ahead.
class SlowStores {
 public:
  void make() {
    for (int i = 0; i < 40; ++i) lines_[random_() % lines_.size()].word = 1;
  }

 private:
  struct alignas(64) Line {
    volatile uint64_t word = 0;
  };
  std::vector<Line> lines_ = std::vector<Line>(size_t{1} << 20);
  std::minstd_rand random_{2};
};

// Idle until it is cancelled.
class Idle final : public Operation, public Task {
 public:
  using Operation::Operation;
  Turn turn() override {
    if (cancelled()) {
      markEnded(Status(Code::kCancelled, "cancelled"));
      return Turn::kFinished;
    }
    turns.store(turns.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return Turn::kIdle;
  }
  std::atomic<uint64_t> turns{0};
};

// The thread that cancels stores and then looks whether the engine sleeps; the engine says that it
// sleeps and then looks. One of the two sees the other, whatever the moment.
TEST(Operation, ACancelIsSeenWhileTheEngineFallsAsleep) {
  auto progress = Progress::create(0ns).value();
  std::minstd_rand random(1);
  SlowStores slow;
  const uint64_t rounds = std::getenv("PEERLANE_SOAK") != nullptr ? 1'000'000 : 20'000;
  const auto waitFor = [](const auto& is) {
    for (const auto limit = Clock::now() + 20s; !is();)
      if (Clock::now() > limit) return false;
    return true;
  };
  for (uint64_t i = 0; i < rounds; ++i) {
    auto operation = std::make_shared<Idle>(*progress);
    progress->add(operation);
    ASSERT_TRUE(waitFor([&] { return operation->turns.load(std::memory_order_relaxed) != 0; }));
    for (uint32_t pause = random() % 400; pause > 0; --pause)
      std::atomic_signal_fence(std::memory_order_seq_cst);
    slow.make();
    operation->cancel();
    ASSERT_TRUE(waitFor([&] { return operation->done(); })) << "lost in round " << i;
  }
}

// Each is told once, in order, whether it asked before the end or after it.
TEST(Operation, TellsEverybodyWhoAsked) {
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

// The progress thread, which has to tell of the end, is busy.
TEST(Operation, TellsThoseWhoAskLateAfterThoseWhoAskedBefore) {
  auto progress = Progress::create(0ns).value();
  StandingCallback stands(*progress);
  auto operation = std::make_shared<Idle>(*progress);
  std::vector<int> told;
  operation->onEnd([&told](const Status&) { told.push_back(0); });
  progress->add(operation);
  operation->cancel();
  EXPECT_EQ(operation->wait(20s).code(), Code::kCancelled);
  operation->onEnd([&told](const Status&) { told.push_back(1); });
  EXPECT_TRUE(told.empty());
  stands.goOn();
  ASSERT_TRUE(progress->call([] {}).isOk());
  EXPECT_EQ(told, (std::vector<int>{0, 1}));
}

// A function is called while another thread gives one, and it gives one itself.
TEST(Operation, TellsOneAfterTheOther) {
  auto progress = Progress::create(0ns).value();
  auto operation = std::make_shared<Idle>(*progress);
  progress->add(operation);
  operation->cancel();
  EXPECT_EQ(operation->wait(20s).code(), Code::kCancelled);
  std::vector<int> told;
  std::promise<void> isIn, mayGoOn;
  std::thread first([&] {
    operation->onEnd([&](const Status&) {
      operation->onEnd([&told](const Status&) { told.push_back(1); });
      isIn.set_value();
      mayGoOn.get_future().wait();
      told.push_back(0);
    });
  });
  isIn.get_future().wait();
  std::thread::id caller;
  operation->onEnd([&](const Status&) {
    told.push_back(2);
    caller = std::this_thread::get_id();
  });
  const std::thread::id expected = first.get_id();
  mayGoOn.set_value();
  first.join();
  EXPECT_EQ(told, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(caller, expected);
  operation->onEnd([&told](const Status&) { told.push_back(3); });
  EXPECT_EQ(told.back(), 3);
}

// An engine that has stopped drops what it should have called; whoever asks later is told.
TEST(Operation, TellsWhoAsksAfterTheEngineHasStopped) {
  auto progress = Progress::create(0ns).value();
  auto operation = std::make_shared<Idle>(*progress);
  auto held = std::make_shared<int>(0);
  operation->onEnd([held](const Status&) { ++*held; });
  progress->stop();
  operation->cancel();
  EXPECT_EQ(operation->turn(), Task::Turn::kFinished);
  EXPECT_EQ(*held, 0);
  EXPECT_EQ(held.use_count(), 1);
  bool isTold = false;
  operation->onEnd([&isTold](const Status&) { isTold = true; });
  EXPECT_TRUE(isTold);
}

}  // namespace
}  // namespace peerlane
