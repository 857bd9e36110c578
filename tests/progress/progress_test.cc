// SPDX-License-Identifier: Apache-2.0
//
// Tasks, posts, calls and waits of one progress engine. The wake rule has a file of its own.
#include "peerlane/progress/progress.h"
#include "tests/progress/standing_callback.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace peerlane {
namespace {

using namespace std::chrono_literals;
using Clock = Progress::Clock;

std::unique_ptr<Progress> makeProgress(Progress::Duration spin = 50us) {
  return Progress::create(spin).value();
}

// Finishes after `turns` turns; checks that no two threads turn it at once.
class CountingTask final : public Task {
 public:
  explicit CountingTask(int turns) : turns_(turns) {}
  Turn turn() override {
    if (inside_.exchange(true)) overlapped.store(true);
    const int now = taken.fetch_add(1) + 1;
    inside_.store(false);
    return now >= turns_ ? Turn::kFinished : Turn::kMoved;
  }
  std::string describe() const override { return "counts to " + std::to_string(turns_); }
  std::atomic<int> taken{0};
  std::atomic<bool> overlapped{false};

 private:
  const int turns_;
  std::atomic<bool> inside_{false};
};

// Never finishes by itself.
class IdleTask final : public Task {
 public:
  explicit IdleTask(std::atomic<int>& alive) : alive_(alive) { alive_.fetch_add(1); }
  ~IdleTask() override { alive_.fetch_sub(1); }
  Turn turn() override { return Turn::kIdle; }

 private:
  std::atomic<int>& alive_;
};

TEST(Progress, TurnsATaskUntilItIsFinishedAndLetsItGo) {
  auto progress = makeProgress();
  auto task = std::make_shared<CountingTask>(5);
  const std::weak_ptr<CountingTask> weak = task;
  progress->add(task);
  ASSERT_TRUE(progress->wait([&] { return weak.lock()->taken.load() >= 5; }, Clock::now() + 10s));
  task.reset();
  ASSERT_TRUE(progress->wait([&] { return weak.expired(); }, Clock::now() + 10s).isOk());
}

TEST(Progress, NeverTurnsATaskInTwoThreadsAtOnce) {
  auto progress = makeProgress();
  auto task = std::make_shared<CountingTask>(20000);
  progress->add(task);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&] {
      while (task->taken.load() < 20000)
        if (!progress->turn()) std::this_thread::yield();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(task->overlapped.load());
}

// A task that is added again by whoever learnt that it is finished, at once.
class ReturningTask final : public Task {
 public:
  Turn turn() override {
    rounds.fetch_add(1, std::memory_order_release);
    return Turn::kFinished;
  }
  std::atomic<uint64_t> rounds{0};
};

TEST(Progress, AFinishedTaskMayComeBackAtOnce) {
  auto progress = makeProgress();
  auto task = std::make_shared<ReturningTask>();
  for (uint64_t i = 0; i < 5000; ++i) {
    progress->add(task);
    while (task->rounds.load(std::memory_order_acquire) <= i) {
      if (i % 2 == 0) (void)progress->turn();
      std::this_thread::yield();
    }
  }
  progress.reset();
  EXPECT_EQ(task.use_count(), 1);
}

TEST(Progress, ManyThreadsAdd) {
  auto progress = makeProgress();
  std::atomic<uint64_t> finished{0};
  struct Once final : Task {
    explicit Once(std::atomic<uint64_t>& count) : count_(count) {}
    Turn turn() override {
      count_.fetch_add(1);
      return Turn::kFinished;
    }
    std::atomic<uint64_t>& count_;
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 3000; ++i) progress->add(std::make_shared<Once>(finished));
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(progress->wait([&] { return finished.load() == 9000; }, Clock::now() + 30s).isOk());
}

// Each moving all behind it would be five thousand million moves.
TEST(Progress, ManyThatEndTogetherEndAtOnce) {
  constexpr int kTasks = 100'000;
  class GatedTask final : public Task {
   public:
    GatedTask(const std::atomic<bool>& gate, std::atomic<int>& ended)
        : gate_(gate), ended_(ended) {}
    ~GatedTask() override { ended_.fetch_add(1); }
    Turn turn() override { return gate_.load() ? Turn::kFinished : Turn::kIdle; }

   private:
    const std::atomic<bool>& gate_;
    std::atomic<int>& ended_;
  };
  std::atomic<bool> gate{false};
  std::atomic<int> ended{0};
  auto progress = makeProgress();
  const auto begin = Clock::now();
  for (int i = 0; i < kTasks; ++i) progress->add(std::make_shared<GatedTask>(gate, ended));
  progress->turn();
  // What is linear in their number, on this machine.
  const Clock::duration linear = Clock::now() - begin;
  gate.store(true);
  progress->wake();
  const auto deadline = Clock::now() + std::max<Clock::duration>(3s, 20 * linear);
  EXPECT_TRUE(progress->wait([&] { return ended.load() == kTasks; }, deadline).isOk());
}

TEST(Progress, PostsOfOneThreadKeepTheirOrderOnOneThread) {
  auto progress = makeProgress();
  std::vector<int> seen;
  std::set<std::thread::id> ids;
  for (int i = 0; i < 1000; ++i)
    progress->post([&, i] {
      seen.push_back(i);
      ids.insert(std::this_thread::get_id());
    });
  ASSERT_TRUE(progress->call([] {}).isOk());
  ASSERT_EQ(seen.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i);
  EXPECT_EQ(ids.size(), 1u);
  EXPECT_EQ(ids.count(std::this_thread::get_id()), 0u);
}

TEST(Progress, BlockingCallsOnItsOwnThreadAreErrorsNotDeadlocks) {
  auto progress = makeProgress();
  Status called;
  Status waited;
  ASSERT_TRUE(progress
                  ->call([&] {
                    EXPECT_TRUE(progress->onLoopThread());
                    called = progress->call([] {});
                    waited = progress->wait([] { return false; }, Clock::now() + 10s);
                  })
                  .isOk());
  EXPECT_EQ(called.code(), Code::kInvalidArgument);
  EXPECT_EQ(waited.code(), Code::kInvalidArgument);
  EXPECT_FALSE(progress->onLoopThread());
}

TEST(Progress, WaitEndsAtItsDeadline) {
  auto progress = makeProgress();
  const auto begin = Clock::now();
  const Status status = progress->wait([] { return false; }, begin + 30ms);
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_GE(Clock::now() - begin, 30ms);
  // One that is past already still looks once.
  EXPECT_TRUE(progress->wait([] { return true; }, begin).isOk());
  EXPECT_EQ(progress->wait([] { return false; }, begin).code(), Code::kTimeout);
}

// Not shown while other threads have the turn for long.
std::vector<std::string> shown(const std::function<std::vector<std::string>()>& describe) {
  std::vector<std::string> lines;
  const auto limit = Clock::now() + 20s;
  do lines = describe();
  while (!lines.empty() && lines[0].starts_with("cannot be shown") && Clock::now() < limit);
  return lines;
}

TEST(Progress, DescribesWhatIsPending) {
  auto progress = makeProgress();
  std::atomic<int> alive{0};
  progress->add(std::make_shared<IdleTask>(alive));
  auto task = std::make_shared<CountingTask>(1 << 30);
  progress->add(task);
  ASSERT_TRUE(progress->wait([&] { return task->taken.load() > 0; }, Clock::now() + 10s).isOk());
  EXPECT_EQ(shown([&] { return progress->describeTasks(); }),
            std::vector<std::string>{"counts to 1073741824"});
}

TEST(Progress, ATimeoutSaysWhatWasWaitedForAndHowLong) {
  auto progress = makeProgress();
  int asked = 0;
  const auto words = [&] {
    ++asked;
    return std::string("a word to reach 7; it is 3");
  };
  EXPECT_TRUE(progress->wait([] { return true; }, 30ms, words).isOk());
  EXPECT_EQ(asked, 0) << "who does not wait in vain builds no text";
  const Status status = progress->wait([] { return false; }, 30ms, words);
  EXPECT_EQ(status.code(), Code::kTimeout);
  const std::string text(status.message());
  EXPECT_TRUE(text.starts_with("waited ")) << text;
  EXPECT_TRUE(text.ends_with(" ms for a word to reach 7; it is 3")) << text;
  EXPECT_GE(std::stoi(text.substr(7)), 30) << text;
  EXPECT_EQ(progress->waitAsleep([] { return false; }, Clock::now(), words).message().substr(0, 7),
            "waited ");
}

// What is said is read while nothing turns: of a task that each turn writes, too.
TEST(Progress, ShowsWhoSleepsInAWait) {
  auto progress = makeProgress();
  EXPECT_TRUE(progress->describeWaits().empty());
  auto task = std::make_shared<CountingTask>(1 << 30);
  progress->add(task);
  std::atomic<bool> done{false};
  std::thread waiter([&] {
    const auto words = [&] { return "the end of what " + task->describe(); };
    EXPECT_TRUE(progress->wait([&] { return done.load(); }, 20s, words).isOk());
  });
  std::vector<std::string> lines;
  const auto limit = Clock::now() + 20s;
  while (lines.empty() && Clock::now() < limit)
    lines = shown([&] { return progress->describeWaits(); });
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].starts_with("thread ")) << lines[0];
  EXPECT_TRUE(lines[0].ends_with(" (at most 20.0 s) for the end of what counts to 1073741824"))
      << lines[0];
  done = true;
  progress->notifyWaiters();
  waiter.join();
  EXPECT_TRUE(shown([&] { return progress->describeWaits(); }).empty());
}

TEST(Progress, DurationsInWords) {
  EXPECT_EQ(durationInWords(-1s), "0 us");
  EXPECT_EQ(durationInWords(1500ns), "2 us");
  EXPECT_EQ(durationInWords(12'400us), "12 ms");
  EXPECT_EQ(durationInWords(9'999ms), "9999 ms");
  EXPECT_EQ(durationInWords(12'340ms), "12.3 s");
  EXPECT_EQ(durationInWords(std::chrono::nanoseconds::max()), "no end");
}

// The function may hold what is the caller's: it does not run once the call has returned.
TEST(Progress, ACallThatCannotBeginEndsAtItsDeadline) {
  auto progress = makeProgress();
  StandingCallback stands(*progress);
  std::atomic<bool> ran{false};
  auto call = std::async(std::launch::async, [&] {
    return progress->call([&] { ran.store(true); }, Clock::now() + 20ms);
  });
  const bool isBack = call.wait_for(20s) == std::future_status::ready;
  stands.goOn();
  ASSERT_TRUE(isBack);
  const Status status = call.get();
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_TRUE(
      status.message().ends_with("for the progress thread, which is busy or stands in a callback"))
      << status.toString();
  EXPECT_TRUE(progress->call([] {}).isOk());
  EXPECT_FALSE(ran.load());
}

// Stands in its turn, as one whose lines a sink of the log does not take.
class StandingTask final : public Task {
 public:
  Turn turn() override {
    stands.set_value();
    goOn.get_future().wait();
    return Turn::kFinished;
  }
  std::promise<void> stands, goOn;
};

TEST(Progress, ATurnThatStandsHoldsUpNoWords) {
  auto progress = makeProgress();
  const auto task = std::make_shared<StandingTask>();
  progress->add(task);
  task->stands.get_future().wait();
  auto words = std::async(std::launch::async, [&] {
    const Status status = progress->wait([] { return false; }, Clock::now() + 20ms,
                                         [] { return std::string("nothing"); });
    return std::vector<std::string>{status.toString(), progress->describeTasks().at(0),
                                    progress->describeWaits().at(0)};
  });
  const bool areThere = words.wait_for(20s) == std::future_status::ready;
  task->goOn.set_value();
  ASSERT_TRUE(areThere);
  for (const std::string& each : words.get())
    EXPECT_NE(each.find("other threads have had the turn for 100 ms"), std::string::npos) << each;
}

TEST(Progress, StopDropsTasksAndRefusesCalls) {
  auto progress = makeProgress();
  std::atomic<int> alive{0};
  progress->add(std::make_shared<IdleTask>(alive));
  progress->add(std::make_shared<IdleTask>(alive));
  progress->stop();
  EXPECT_EQ(alive.load(), 0);
  progress->stop();
  EXPECT_EQ(progress->call([] {}).code(), Code::kClosed);
  EXPECT_EQ(progress->wait([] { return false; }, Clock::now() + 1ms).code(), Code::kTimeout);
}

// Handles may outlive their context: a thread that waits while the engine stops must not meet its
// last turn.
TEST(Progress, StopsWhileOtherThreadsWaitAndTurn) {
  for (int round = 0; round < 30; ++round) {
    auto progress = makeProgress();
    std::atomic<int> alive{0};
    std::atomic<bool> stopped{false};
    for (int i = 0; i < 20; ++i) progress->add(std::make_shared<IdleTask>(alive));
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i)
      threads.emplace_back([&] {
        while (!stopped.load()) (void)progress->turn();
      });
    threads.emplace_back(
        [&] { (void)progress->wait([&] { return stopped.load(); }, Clock::now() + 10s); });
    progress->stop();
    stopped.store(true);
    progress->notifyWaiters();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(alive.load(), 0);
  }
}

TEST(Progress, InAForkedChildBlockingCallsAreErrors) {
  auto progress = makeProgress();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a hang ends the child by a signal
    const bool wait =
        progress->wait([] { return false; }, Clock::now() + 10s).code() == Code::kNotSupported;
    const bool call = progress->call([] {}).code() == Code::kNotSupported;
    _exit(wait && call ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// With cores for everybody: calls and waits end as they do else, also those that take longer than
// busy polling lasts.
TEST(ProgressBusyPoll, CallsAndWaitsEnd) {
  const auto progress = Progress::create(50us, nullptr, /*busyPoll=*/true).value();
  for (int i = 0; i < 100; ++i) {
    bool ran = false;
    ASSERT_TRUE(progress->call([&] { ran = true; }).isOk());
    EXPECT_TRUE(ran);
  }
  EXPECT_TRUE(progress->call([] { std::this_thread::sleep_for(5ms); }).isOk());
  std::atomic<bool> is{false};
  EXPECT_EQ(progress->waitAsleep([&] { return is.load(); }, Clock::now() + 20ms).code(),
            Code::kTimeout);
  std::vector<std::thread> waiting;
  std::atomic<int> seen{0};
  for (int i = 0; i < 4; ++i)
    waiting.emplace_back([&] {
      const Status status = progress->waitAsleep([&] { return is.load(); }, Clock::now() + 20s);
      seen += status.isOk() ? 1 : 0;
    });
  progress->post([&] {
    is.store(true);
    progress->notifyWaiters();
  });
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(seen.load(), 4);
  progress->stop();
  EXPECT_EQ(progress->call([] {}).code(), Code::kClosed);
}

}  // namespace
}  // namespace peerlane
