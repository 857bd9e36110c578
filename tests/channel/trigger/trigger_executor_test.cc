// SPDX-License-Identifier: Apache-2.0
//
// A triggered queue with an executor of its own on another thread, at the moments that the two
// threads may meet: one of them gets what both want, and what the executor got is performed.
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "tests/channel/context_pair.h"
#include "tests/channel/trigger/program_runner.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kRounds = 100;
#else
constexpr uint64_t kRounds = 200;
#endif

// A thread that does one thing at a time for another one, and begins at once: the two meet.
class Partner {
 public:
  ~Partner() {
    end();
    state_.store(kStop);
    state_.notify_all();
    thread_.join();
  }
  void begin(std::function<void()> act) {
    act_ = std::move(act);
    state_.store(kBusy, std::memory_order_release);
    state_.notify_all();
  }
  void end() const { state_.wait(kBusy, std::memory_order_acquire); }

 private:
  enum State { kIdle, kBusy, kStop };
  void run() {
    for (;;) {
      const State now = state_.load(std::memory_order_acquire);
      if (now == kStop) return;
      if (now == kIdle) {
        state_.wait(kIdle, std::memory_order_acquire);
        continue;
      }
      act_();
      state_.store(kIdle, std::memory_order_release);
      state_.notify_all();
    }
  }
  std::function<void()> act_;
  std::atomic<State> state_{kIdle};
  std::thread thread_{[this] { run(); }};
};

class TriggerExecutor : public NearAndFarTest {
 protected:
  static constexpr uint64_t kBytes = 4096;
  TriggerExecutor() : NearAndFarTest(kBytes) {}
  TriggeredQueue queue(const TriggerOptions& options = {}) {
    return MUST(TriggeredQueue::create(pair_.toB, options));
  }
  Status put(TriggeredQueue& queue, const Region& from, uint64_t at, uint64_t bytes) {
    const Block block{&from, at, &remote_, at, bytes};
    return queue.put({&block, 1});
  }
  Status put(TriggeredQueue& queue, uint64_t at, uint64_t bytes) {
    return put(queue, near_->region(), at, bytes);
  }
  // A little later each time, so that the other thread is met everywhere.
  static void pause(uint64_t round) {
    for (std::atomic<uint64_t> left{round % 50 * 20}; left.load(std::memory_order_relaxed) > 0;)
      left.fetch_sub(1, std::memory_order_relaxed);
  }
};

INSTANTIATE_TEST_SUITE_P(Routes, TriggerExecutor, everyRouteAndVerbs(), routeName);

TEST_P(TriggerExecutor, OneOfRollbackAndEnqueueGetsTheCommit) {
  TriggeredQueue queue = this->queue({.operations = 8, .commits = 4});
  const Signal arrived = MUST(Signal::create(pair_.toA, 0));
  Partner executor;
  uint64_t launched = 0, number = 1;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t at = round % 64 * 64;
    near_->data()[at] = near_->shadow()[at] = static_cast<std::byte>(round * 7 + 1);
    ASSERT_OK(put(queue, at, 40));
    ASSERT_OK(queue.signal(0));
    const TriggerProgram made = MUST(queue.commit());
    ASSERT_EQ(made.id.number, number);
    const ProgramRunner runner(queue.targets());
    Status got;
    executor.begin([&] {
      if (round % 2 == 0) {
        got = queue.execute(made.id);
      } else if (got = queue.enqueueCommit(made.id); got.isOk()) {
        EXPECT_TRUE(runner.run(*made.program));
        queue.wake();
      }
    });
    pause(round);
    const Status back = queue.rollback(made.id);
    executor.end();
    ASSERT_NE(got.isOk(), back.isOk()) << got.toString() << ", " << back.toString();
    ASSERT_EQ((got.isOk() ? back : got).code(), Code::kInvalidArgument);
    if (!got.isOk()) continue;
    ++launched;
    ++number;
    std::memcpy(far_->shadow() + at, near_->shadow() + at, 40);
    ASSERT_OK(queue.wait(made.id.number, kSoon));
    ASSERT_OK(queue.poll(made.id.number));
  }
  EXPECT_EQ(arrived.value(), launched);
  EXPECT_TRUE(far_->isAsExpected());
}

TEST_P(TriggerExecutor, OneOfAbortAndEnqueueGetsThePeek) {
  TriggeredQueue queue = this->queue({.operations = 8, .commits = 2});
  Partner executor;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    ASSERT_OK(put(queue, 0, 40));
    const TriggerProgram made = MUST(queue.commit());
    const TriggerProgram peek = MUST(queue.peek(round));
    const ProgramRunner runner(queue.targets());
    ASSERT_OK(queue.execute(made.id));
    Status got;
    executor.begin([&] {
      if (round % 2 == 0) {
        got = queue.executePeek(peek.id, kSoon);
      } else if (got = queue.enqueuePeek(peek.id); got.isOk()) {
        EXPECT_TRUE(runner.run(*peek.program));
      }
    });
    pause(round);
    const Status back = queue.abortPeek(peek.id);
    executor.end();
    ASSERT_NE(got.isOk(), back.isOk()) << got.toString() << ", " << back.toString();
    ASSERT_OK(queue.wait(round, kSoon));
    ASSERT_OK(queue.poll(round)) << "no peek is left";
  }
}

// The slots are used again as soon as the other thread has stored the last word of a program, which
// it is about to leave.
TEST_P(TriggerExecutor, SlotsAreUsedAgainWhileTheExecutorLeavesThem) {
  TriggeredQueue queue = this->queue({.operations = 4, .commits = 2});
  const Signal arrived = MUST(Signal::create(pair_.toA, 1));
  std::atomic<uint64_t> handed{0}, failures{0};
  std::array<TriggerId, 2> ids{}, peeks{};
  constexpr uint64_t kTurns = kRounds;
  std::thread executor([&] {
    for (uint64_t number = 1; number <= kTurns; ++number) {
      while (handed.load(std::memory_order_acquire) < number) std::this_thread::yield();
      const TriggerId id = ids[number % 2], peek = peeks[number % 2];  // they are written again
      failures += !queue.execute(id).isOk();
      failures += !queue.executePeek(peek, kSoon).isOk();
    }
  });
  // Each third one launches nothing, so it is complete before the executor has left it.
  uint64_t signals = 0;
  for (uint64_t number = 1; number <= kTurns; ++number) {
    if (number % 3 == 0) {
      ASSERT_OK(queue.receive(3, 0));
    } else {
      ASSERT_TRUE(soon([&] { return put(queue, 0, 64).isOk(); }));
      ASSERT_TRUE(soon([&] { return queue.signal(1).isOk(); }));
      ++signals;
    }
    TriggerProgram made;
    ASSERT_TRUE(soon([&] {
      const auto commit = queue.commit();
      if (commit.isOk()) made = *commit;
      return commit.isOk();
    })) << number;
    ids[number % 2] = made.id;
    peeks[number % 2] = MUST(queue.peek(number)).id;
    handed.store(number, std::memory_order_release);
  }
  executor.join();
  EXPECT_EQ(failures.load(), 0u);
  ASSERT_OK(queue.wait(kTurns, kSoon));
  EXPECT_OK(arrived.wait(signals, kSoon));
  EXPECT_EQ(arrived.value(), signals);
  std::memcpy(far_->shadow(), near_->shadow(), 64);
  EXPECT_TRUE(far_->isAsExpected());
}

// With what was launched, made and posted under way: all of it lets go of its region.
TEST_P(TriggerExecutor, CancelMeetsTheEnd) {
  Partner executor;
  uint64_t ended = 0;
  for (uint64_t round = 0; round < kRounds / 4; ++round) {
    TestMemory own(*pair_.a, 512, GetParam().shared, Access::kRemoteReadWrite, round);
    TriggeredQueue queue = this->queue();
    ASSERT_OK(put(queue, own.region(), 0, 512));
    const TriggerProgram first = MUST(queue.commit());
    ASSERT_OK(put(queue, own.region(), 0, 8));
    const TriggerProgram second = MUST(queue.commit());
    Status got;
    executor.begin([&] {
      if (got = queue.execute(first.id); got.isOk()) got = queue.wait(1, kSoon);
    });
    pause(round);
    queue.cancel();
    executor.end();
    EXPECT_TRUE(got.isOk() || got.code() == Code::kCancelled) << got.toString();
    if (got.isOk()) {
      ++ended;
      EXPECT_EQ(firstDifference(far_->data(), own.data(), 512), 512u);
      EXPECT_OK(queue.poll(1)) << "it was seen to be complete";
    }
    EXPECT_EQ(queue.status().code(), Code::kCancelled);
    EXPECT_NE(queue.status().message().find("the triggered queue was cancelled"),
              std::string_view::npos);
    EXPECT_EQ(queue.execute(second.id).code(), Code::kCancelled);
    EXPECT_OK(pair_.a->unregister(own.releaseRegion(), kSoon)) << "while the queue is there";
  }
  RecordProperty("ended", std::to_string(ended));
}

TEST_P(TriggerExecutor, ABellThatWasNotEnqueuedFailsTheQueueAndNothingMoves) {
  for (const bool isBeyond : {true, false}) {
    TriggeredQueue queue = this->queue({.emitter = TriggerEmitter::kDoorbell});
    ASSERT_OK(put(queue, 0, 64));
    const TriggerProgram first = MUST(queue.commit());
    ASSERT_OK(put(queue, 64, 64));
    const TriggerProgram second = MUST(queue.commit());
    const ProgramRunner runner(queue.targets());
    const auto bell = runner.wordOf(0);
    const uint64_t before = bell.load();
    if (isBeyond) {
      ASSERT_OK(queue.enqueueCommit(first.id));
      bell.store(before + 2, std::memory_order_release);
    } else {
      ASSERT_OK(queue.execute(first.id));
      ASSERT_OK(queue.wait(1, kSoon));
      std::memcpy(far_->shadow(), near_->shadow(), 64);
      bell.store(before, std::memory_order_release);
    }
    queue.wake();
    ASSERT_TRUE(soon([&] { return !queue.status().isOk(); }));
    EXPECT_EQ(queue.status().code(), Code::kInvalidArgument) << queue.status().toString();
    EXPECT_NE(queue.status().message().find("were enqueued"), std::string_view::npos);
    EXPECT_EQ(queue.execute(second.id).code(), Code::kInvalidArgument);
    EXPECT_EQ(queue.wait(2, kSoon).code(), Code::kInvalidArgument);
    EXPECT_EQ(runner.wordOf(1).load(), kPoison) << "every wait is released";
    EXPECT_TRUE(far_->isAsExpected());
  }
}

// A program that another executor runs although the queue has failed stores its count over the
// poison: that comes again, so that who waits for a later commit is released.
TEST_P(TriggerExecutor, TheFailureIsSaidAgainOverALateProgram) {
  TriggeredQueue queue = this->queue();
  ASSERT_OK(put(queue, 0, 8));
  const TriggerProgram made = MUST(queue.commit());
  const ProgramRunner runner(queue.targets());
  ASSERT_OK(queue.enqueueCommit(made.id));
  queue.cancel();
  EXPECT_EQ(runner.wordOf(1).load(), kPoison);
  EXPECT_TRUE(runner.run(*made.program));
  EXPECT_EQ(queue.poll(1).code(), Code::kCancelled);
  EXPECT_EQ(runner.wordOf(1).load(), kPoison);
}

// The regions of what is posted and made are in use; of what is over, they are not.
TEST_P(TriggerExecutor, RegionsStayInUseUntilTheCommitIsOver) {
  enum class End { kDiscard, kRollback, kComplete, kCancelPosted, kCancelMade, kClose };
  for (const End end : {End::kDiscard, End::kRollback, End::kComplete, End::kCancelPosted,
                        End::kCancelMade, End::kClose}) {
    SCOPED_TRACE(static_cast<int>(end));
    TestMemory own(*pair_.a, 512, GetParam().shared);
    const Region region = own.releaseRegion();
    TriggeredQueue queue = this->queue();
    const auto isInUse = [&] { return pair_.a->unregister(region, 1ms).code() == Code::kTimeout; };
    ASSERT_OK(put(queue, region, 0, 512));
    if (end == End::kDiscard || end == End::kCancelPosted) {
      EXPECT_TRUE(isInUse());
      end == End::kDiscard ? queue.discard() : queue.cancel();
      if (end == End::kCancelPosted) {
        EXPECT_EQ(queue.signal(0).code(), Code::kCancelled);
      }
      EXPECT_OK(pair_.a->unregister(region, kSoon));
      continue;
    }
    const TriggerProgram made = MUST(queue.commit());
    EXPECT_TRUE(isInUse());
    switch (end) {
      case End::kRollback: ASSERT_OK(queue.rollback(made.id)); break;
      case End::kComplete:
        ASSERT_OK(queue.execute(made.id));
        ASSERT_OK(queue.wait(1, kSoon));
        std::memcpy(far_->shadow(), own.shadow(), 512);
        break;
      case End::kCancelMade: queue.cancel(); break;
      default: queue = {}; break;
    }
    EXPECT_OK(pair_.a->unregister(region, kSoon));
    EXPECT_TRUE(far_->isAsExpected());
  }
}

TEST_P(TriggerExecutor, BytesAreCountedByLink) {
  TriggeredQueue queue = this->queue();
  const auto counted = [this](const char* direction) {
    const std::string text = pair_.a->metrics();
    uint64_t all = 0;
    for (size_t at = 0; (at = text.find("\npeerlane_bytes_total{", at)) != std::string::npos;
         ++at) {
      const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
      if (line.find("link=\"" + std::string(GetParam().link) + "\"") == std::string::npos ||
          line.find("\"" + std::string(direction) + "\"") == std::string::npos)
        continue;
      all += std::stoull(line.substr(line.rfind(' ') + 1));
    }
    return all;
  };
  const uint64_t puts = counted("put"), gets = counted("get");
  ASSERT_OK(put(queue, 0, 1000));
  const Block fetched{&near_->region(), 2000, &remote_, 3000, 500};
  ASSERT_OK(queue.get({&fetched, 1}));
  const TriggerProgram made = MUST(queue.commit());
  EXPECT_EQ(counted("put"), puts) << "nothing was launched";
  ASSERT_OK(queue.execute(made.id));
  ASSERT_OK(queue.wait(1, kSoon));
  ASSERT_OK(queue.poll(1)) << "which also waits for another thread that is ending it";
  EXPECT_EQ(counted("put") - puts, 1000u) << pair_.a->metrics();
  EXPECT_EQ(counted("get") - gets, 500u);
}

}  // namespace
}  // namespace peerlane
