// SPDX-License-Identifier: Apache-2.0
//
// Triggered queues to a process that is killed, and to one that stands still, while an executor
// waits for a peek: it is released, the regions are free, and the next process is welcome.
#include <atomic>
#include <thread>

#include "peerlane/channel/trigger/triggered_queue.h"
#include "tests/faults/surviving_side.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kTriggerBytes = 1 << 20;

class KilledTrigger : public testing::TestWithParam<const char*> {
 protected:
  KilledTrigger() : side_(impatient(GetParam()), GetParam(), kTriggerBytes) {}
  static Status post(SurvivingSide& side, TriggeredQueue& queue) {
    const Block block = side.whole();
    return queue.put({&block, 1});
  }
  // What the executor hears that waits for a signal of the peer's while `strike` is done to it.
  template <typename Strike>
  Status heard(TriggeredQueue& queue, const Strike& strike) {
    EXPECT_OK(post(side_, queue));
    EXPECT_OK(queue.receive(1, 1));
    const TriggerProgram commit = MUST(queue.commit());
    const TriggerProgram peek = MUST(queue.peek(1));
    EXPECT_OK(queue.execute(commit.id));
    EXPECT_OK(post(side_, queue));
    EXPECT_OK(queue.commit().status());
    EXPECT_OK(post(side_, queue));  // posted, made and launched
    Status status;
    std::atomic<bool> begins{false};
    std::thread executor([&] {
      begins.store(true);
      status = queue.executePeek(peek.id, kSoon);
    });
    EXPECT_TRUE(soon([&] { return begins.load(); }));
    strike();
    executor.join();
    EXPECT_FALSE(queue.wait(1, kSoon).isOk());
    return status;
  }
  SurvivingSide side_;
};

INSTANTIATE_TEST_SUITE_P(Routes, KilledTrigger, testing::Values("mapped", "cma", "ring", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

TEST_P(KilledTrigger, AWaitIsReleasedAndTheNextPeerIsWelcome) {
  TriggeredQueue queue = MUST(TriggeredQueue::create(side_.peer));
  const Status status = heard(queue, [this] { side_.other->kill(); });
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.toString();
  EXPECT_EQ(post(side_, queue).code(), Code::kPeerLost);
  EXPECT_EQ(queue.status().code(), Code::kPeerLost) << queue.status().toString();
  EXPECT_OK(side_.context->unregister(side_.memory->region(), kSoon)) << "while the queue is there";
  side_.meet(GetParam(), kTriggerBytes);
  TriggeredQueue next = MUST(TriggeredQueue::create(side_.peer));
  ASSERT_OK(post(side_, next));
  ASSERT_OK(next.execute(MUST(next.commit()).id));
  EXPECT_OK(next.wait(1, kSoon));
}

// An executor of one's own waits for words and looks at the status, and nobody calls the queue.
TEST_P(KilledTrigger, AnExecutorOfOnesOwnIsTold) {
  for (const bool hasPut : {false, true}) {
    TriggeredQueue queue =
        MUST(TriggeredQueue::create(side_.peer, {.emitter = TriggerEmitter::kDoorbell}));
    if (hasPut) {
      ASSERT_OK(post(side_, queue));
      ASSERT_OK(queue.execute(MUST(queue.commit()).id));
      ASSERT_OK(queue.wait(1, kSoon));  // it is complete: nothing is under way any more
    }
    ASSERT_OK(queue.receive(1, 1));
    const TriggerProgram commit = MUST(queue.commit());
    const TriggerProgram peek = MUST(queue.peek(commit.id.number));
    ASSERT_OK(queue.enqueueCommit(commit.id));
    ASSERT_OK(queue.enqueuePeek(peek.id));
    side_.other->kill();
    EXPECT_TRUE(soon([&] { return queue.status().code() == Code::kPeerLost; }))
        << queue.status().toString();
    EXPECT_OK(side_.context->unregister(side_.memory->region(), kSoon));
    queue = {};
    side_.meet(GetParam(), kTriggerBytes);
  }
}

TEST_P(KilledTrigger, AFrozenOneReleasesAWaitToo) {
  TriggeredQueue queue = MUST(TriggeredQueue::create(side_.peer));
  const Status status = heard(queue, [this] {
    side_.other->freeze();
    ASSERT_TRUE(soon([this] { return side_.peer.state() == "silent"; }));
  });
  EXPECT_EQ(status.code(), Code::kPeerSilent) << status.toString();
  EXPECT_EQ(post(side_, queue).code(), Code::kPeerSilent);
  side_.other->thaw();
  ASSERT_TRUE(soon([this] { return side_.peer.state() == "ready"; }));
  queue = {};
  TriggeredQueue next = MUST(TriggeredQueue::create(side_.peer));
  ASSERT_OK(post(side_, next));
  ASSERT_OK(next.execute(MUST(next.commit()).id));
  EXPECT_OK(next.wait(1, kSoon));
  next = {};
  EXPECT_OK(side_.context->unregister(side_.memory->region(), kSoon));
}

TEST_P(KilledTrigger, TheContextEndsBeforeTheQueues) {
  TriggeredQueue queue = MUST(TriggeredQueue::create(side_.peer));
  TriggeredQueue bell =
      MUST(TriggeredQueue::create(side_.peer, {.emitter = TriggerEmitter::kDoorbell}));
  const Status status = heard(queue, [this] { side_.context.reset(); });
  EXPECT_FALSE(status.isOk());
  EXPECT_NE(status.code(), Code::kTimeout) << status.toString();
  EXPECT_FALSE(post(side_, bell).isOk());
  bell.wake();
  bell.cancel();
  bell = {};
  queue = {};
}

}  // namespace
}  // namespace peerlane
