// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/trigger/triggered_queue.h"

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/channel/context_pair.h"
#include "tests/os/file_memory.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

class TriggeredQueueTest : public NearAndFarTest {
 protected:
  static constexpr uint64_t kBytes = 64 * 1024;
  TriggeredQueueTest() : NearAndFarTest(kBytes) {}

  bool isMapped() const { return std::string(GetParam().engine) == "mapped"; }
  TriggeredQueue queue(const TriggerOptions& options = {}) {
    return MUST(TriggeredQueue::create(pair_.toB, options));
  }
  Status put(TriggeredQueue& queue, uint64_t from, uint64_t to, uint64_t bytes) {
    const Block block{&near_->region(), from, &remote_, to, bytes};
    return queue.put({&block, 1});
  }
  Status get(TriggeredQueue& queue, uint64_t to, uint64_t from, uint64_t bytes) {
    const Block block{&near_->region(), to, &remote_, from, bytes};
    return queue.get({&block, 1});
  }
  void expectPut(uint64_t from, uint64_t to, uint64_t bytes) {
    std::memcpy(far_->shadow() + to, near_->shadow() + from, bytes);
  }
  void run(TriggeredQueue& queue, const TriggerProgram& commit) {
    ASSERT_OK(queue.execute(commit.id));
    ASSERT_OK(queue.wait(commit.id.number, kSoon));
  }
};

INSTANTIATE_TEST_SUITE_P(Routes, TriggeredQueueTest, everyRouteAndVerbs(), routeName);

TEST_P(TriggeredQueueTest, NothingMovesBeforeTheProgramRuns) {
  TriggeredQueue queue = this->queue();
  ASSERT_OK(put(queue, 0, 100, 1000));
  ASSERT_OK(put(queue, 5000, 20000, 8));
  ASSERT_OK(queue.signal(3, 7));
  const Signal arrived = MUST(Signal::create(pair_.toA, 3));
  const TriggerProgram commit = MUST(queue.commit());
  EXPECT_EQ(queue.emitter(), isMapped() ? "mapped" : "doorbell");
  EXPECT_EQ(commit.id.number, 1u);
  EXPECT_EQ(commit.program->ops.size(), isMapped() ? 4u : 1u);
  EXPECT_EQ(queue.poll(1).code(), Code::kTryAgain);
  EXPECT_TRUE(far_->isAsExpected());
  EXPECT_EQ(arrived.value(), 0u);
  ASSERT_OK(queue.execute(commit.id));
  ASSERT_OK(queue.wait(1, kSoon));
  EXPECT_OK(queue.poll(1));
  ASSERT_OK(arrived.wait(7, kSoon));
  expectPut(0, 100, 1000);
  expectPut(5000, 20000, 8);
  EXPECT_TRUE(far_->isAsExpected());
}

TEST_P(TriggeredQueueTest, ManyCommitsGoAroundTheSlots) {
  TriggeredQueue queue = this->queue({.operations = 8, .commits = 4});
  const Signal arrived = MUST(Signal::create(pair_.toA, 0));
  for (uint64_t round = 1; round <= 100; ++round) {
    near_->data()[round] = near_->shadow()[round] = static_cast<std::byte>(round * 3);
    ASSERT_OK(put(queue, round, round * 64, 40));
    ASSERT_OK(queue.signal(0));
    const TriggerProgram commit = MUST(queue.commit());
    ASSERT_EQ(commit.id.number, round);
    run(queue, commit);
    expectPut(round, round * 64, 40);
    ASSERT_OK(arrived.wait(round, kSoon));
  }
  EXPECT_TRUE(far_->isAsExpected());
}

TEST_P(TriggeredQueueTest, GetsAndReceives) {
  TriggeredQueue queue = this->queue();
  ASSERT_OK(get(queue, 300, 4000, 600));
  ASSERT_OK(queue.receive(5, 2));
  const TriggerProgram commit = MUST(queue.commit());
  EXPECT_EQ(queue.peekOps(1), 3u);
  const TriggerProgram peek = MUST(queue.peek(1));
  EXPECT_EQ(peek.program->ops.size(), 3u);
  ASSERT_OK(queue.execute(commit.id));
  EXPECT_EQ(queue.executePeek(peek.id, 1ms).code(), Code::kTimeout);
  EXPECT_EQ(queue.poll(1).code(), Code::kTryAgain);
  std::thread other([&] {
    for (int i = 0; i < 2; ++i) EXPECT_OK(MUST(addSignal(pair_.toA, 5)).wait(kSoon));
  });
  EXPECT_OK(queue.executePeek(peek.id, kSoon));
  other.join();
  EXPECT_OK(queue.poll(1));
  std::memcpy(near_->shadow() + 300, far_->shadow() + 4000, 600);
  EXPECT_TRUE(near_->isAsExpected());
}

TEST_P(TriggeredQueueTest, WhatIsTakenBackNeverMoves) {
  TriggeredQueue queue = this->queue();
  ASSERT_OK(put(queue, 0, 0, 64));
  const TriggerProgram first = MUST(queue.commit());
  ASSERT_OK(put(queue, 64, 64, 64));
  const TriggerProgram second = MUST(queue.commit());
  EXPECT_EQ(queue.rollback(first.id).code(), Code::kInvalidArgument) << "not the last one";
  EXPECT_OK(queue.rollback(second.id));
  ASSERT_OK(put(queue, 128, 128, 64));
  EXPECT_EQ(queue.rollback(first.id).code(), Code::kInvalidArgument) << "one was posted after it";
  queue.discard();
  EXPECT_OK(queue.rollback(first.id));
  EXPECT_EQ(queue.execute(first.id).code(), Code::kInvalidArgument);
  ASSERT_OK(put(queue, 192, 192, 64));
  const TriggerProgram anew = MUST(queue.commit());
  EXPECT_EQ(anew.id.number, 1u);
  EXPECT_EQ(queue.execute(first.id).code(), Code::kInvalidArgument) << "it is another making";
  EXPECT_EQ(queue.rollback(first.id).code(), Code::kInvalidArgument);
  run(queue, anew);
  EXPECT_EQ(queue.rollback(anew.id).code(), Code::kInvalidArgument) << "it has run";
  expectPut(192, 192, 64);
  EXPECT_TRUE(far_->isAsExpected());
}

TEST_P(TriggeredQueueTest, AnEmptyCommitIsEmpty) {
  TriggeredQueue queue = this->queue();
  EXPECT_EQ(queue.commitOps(), 0u);
  const TriggerProgram commit = MUST(queue.commit());
  EXPECT_EQ(commit.id.number, 0u);
  EXPECT_TRUE(commit.program->ops.empty());
  EXPECT_OK(queue.execute(commit.id));
  EXPECT_OK(queue.wait(commit.id.number, 0s));
}

TEST_P(TriggeredQueueTest, StorageThatIsTooSmallIsToldTheSize) {
  TriggeredQueue queue = this->queue();
  ASSERT_OK(put(queue, 0, 0, 64));
  ASSERT_OK(queue.signal(1));
  const uint32_t needs = queue.commitOps();
  EXPECT_EQ(needs, isMapped() ? 3u : 1u);
  const auto refused = queue.commit(needs - 1);
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_NE(refused.status().toString().find("has " + std::to_string(needs) + " ops"),
            std::string::npos)
      << refused.status().toString();
  const TriggerProgram commit = MUST(queue.commit(needs));
  EXPECT_EQ(commit.id.number, 1u) << "nothing was consumed";
  EXPECT_EQ(queue.peek(1, 1).status().code(), Code::kInvalidArgument);
  run(queue, commit);
  expectPut(0, 0, 64);
  EXPECT_TRUE(far_->isAsExpected());
}

TEST_P(TriggeredQueueTest, APeekIsBusyUntilItWasPassedOrAborted) {
  TriggeredQueue queue = this->queue();
  ASSERT_OK(put(queue, 0, 0, 64));
  const TriggerProgram commit = MUST(queue.commit());
  const TriggerProgram peek = MUST(queue.peek(1));
  EXPECT_EQ(queue.rollback(commit.id).code(), Code::kInvalidArgument) << "a peek waits for it";
  ASSERT_OK(queue.execute(commit.id));
  const TriggerProgram other = MUST(queue.peek(1));
  ASSERT_OK(queue.executePeek(other.id, kSoon));
  EXPECT_EQ(queue.poll(1).code(), Code::kTryAgain) << "the first peek is under way";
  ASSERT_OK(queue.abortPeek(peek.id));
  EXPECT_OK(queue.poll(1));
  EXPECT_EQ(queue.abortPeek(peek.id).code(), Code::kInvalidArgument);
  EXPECT_EQ(queue.executePeek(peek.id, kSoon).code(), Code::kInvalidArgument);
  expectPut(0, 0, 64);
}

// Also while another thread lets go of what the commit held.
TEST_P(TriggeredQueueTest, ACommitIsCompleteOnceTheCountSaysSo) {
  TriggeredQueue queue = this->queue({.emitter = TriggerEmitter::kDoorbell});
  for (uint64_t round = 1; round <= 500; ++round) {
    ASSERT_OK(queue.signal(2));
    const TriggerProgram commit = MUST(queue.commit());
    const auto last = static_cast<uint64_t>(commit.program->ops[0].operand.delta);
    ASSERT_OK(queue.execute(commit.id));
    const std::atomic_ref<uint64_t> count(*reinterpret_cast<uint64_t*>(queue.targets()[1].host));
    while (count.load() < last) std::this_thread::yield();
    ASSERT_OK(queue.poll(commit.id.number)) << "round " << round;
  }
}

TEST_P(TriggeredQueueTest, CancelReleasesAWait) {
  TriggeredQueue queue = this->queue();
  ASSERT_OK(queue.receive(9, 1));
  const TriggerProgram commit = MUST(queue.commit());
  ASSERT_OK(queue.execute(commit.id));
  std::thread waiter([&] { EXPECT_EQ(queue.wait(1, kSoon).code(), Code::kCancelled); });
  queue.cancel();
  waiter.join();
  EXPECT_EQ(queue.status().code(), Code::kCancelled);
  EXPECT_EQ(put(queue, 0, 0, 8).code(), Code::kCancelled);
  EXPECT_EQ(queue.poll(1).code(), Code::kCancelled);
}

TEST_P(TriggeredQueueTest, ClosesWithSomethingPosted) {
  TriggeredQueue queue = this->queue();
  ASSERT_OK(put(queue, 0, 0, 8));
  (void)MUST(queue.commit());
  ASSERT_OK(put(queue, 8, 8, 8));
  queue = {};
  EXPECT_TRUE(far_->isAsExpected());
}

class TriggeredQueueOfAFile : public TriggeredQueueTest {};
INSTANTIATE_TEST_SUITE_P(Routes, TriggeredQueueOfAFile, testing::Values(kSelf, kMapped), routeName);

// By the server, whose copies survive a file that another process cuts; an executor's own would
// not.
TEST_P(TriggeredQueueOfAFile, FailsWhereThatIsCut) {
  constexpr std::byte kFill{0x5a};
  FileMemory file(kFill);
  const Region region = MUST(pair_.a->registerRegion(file.data(), kBytes, Access::kLocal));
  const Block block{&region, 0, &remote_, 0, kBytes};
  {
    TriggeredQueue mapped = queue({.emitter = TriggerEmitter::kMapped});
    const Status refused = mapped.put({&block, 1});
    EXPECT_EQ(refused.code(), Code::kNotSupported);
    EXPECT_NE(refused.message().find("may cut"), std::string_view::npos) << refused.toString();
  }
  {
    TriggeredQueue queue = this->queue();
    ASSERT_OK(queue.put({&block, 1}));
    run(queue, MUST(queue.commit()));
    EXPECT_EQ(queue.emitter(), "doorbell");
    EXPECT_EQ(countOf(far_->data(), kBytes, kFill), kBytes);
    file.cutTo(4096);
    ASSERT_OK(queue.put({&block, 1}));
    const TriggerProgram commit = MUST(queue.commit());
    ASSERT_OK(queue.execute(commit.id));
    EXPECT_EQ(queue.wait(commit.id.number, kSoon).code(), Code::kRevoked);
    const auto isNamed = [&] {
      return queue.status().message().find("of this side") != std::string_view::npos;
    };
    EXPECT_TRUE(soon(isNamed)) << queue.status().toString();
  }
  std::memcpy(far_->shadow(), far_->data(), kBytes);  // undefined
  EXPECT_OK(pair_.a->unregister(region, kSoon));
}

// One post, whose regions lie anywhere.
TEST_P(TriggeredQueueTest, SeveralRegionsOfThePeerInOnePost) {
  const auto other = memory(*pair_.b, kBytes, 5);
  const RemoteRegion remoteOther = other->importedBy(pair_.toB);
  for (const TriggerEmitter emitter : {TriggerEmitter::kAuto, TriggerEmitter::kDoorbell}) {
    TriggeredQueue queue = this->queue({.emitter = emitter});
    const uint64_t at = emitter == TriggerEmitter::kAuto ? 0 : 4096;
    const Block blocks[] = {{&near_->region(), at, &remote_, at, 1000},
                            {&near_->region(), at + 1000, &remoteOther, at + 64, 1000},
                            {&near_->region(), at + 2000, &remote_, at + 2048, 1000}};
    ASSERT_OK(queue.put(blocks));
    run(queue, MUST(queue.commit()));
    expectPut(at, at, 1000);
    std::memcpy(other->shadow() + at + 64, near_->shadow() + at + 1000, 1000);
    expectPut(at + 2000, at + 2048, 1000);
    EXPECT_TRUE(far_->isAsExpected());
    EXPECT_TRUE(other->isAsExpected());
  }
}

}  // namespace
}  // namespace peerlane
