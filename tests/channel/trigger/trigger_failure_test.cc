// SPDX-License-Identifier: Apache-2.0
//
// An operation in the middle of what a triggered queue launched that fails, because its program
// lost the memory, or its provider took it back: what came before has its effect, nothing after it
// has, and no signal tells of bytes that never came.
#include <string>
#include <vector>

#include "tests/channel/context_pair.h"
#include "tests/fake/fake_provider.h"
#include "tests/os/file_memory.h"

namespace peerlane {
namespace {

class TriggerFailure : public NearAndFarTest {
 protected:
  TriggerFailure() : NearAndFarTest(FileMemory::kBytes) {}
  static constexpr uint64_t kBytes = FileMemory::kBytes;
};

INSTANTIATE_TEST_SUITE_P(Routes, TriggerFailure, testing::Values(kCma, kRing, kTcp), routeName);

TEST_P(TriggerFailure, OfMemoryThatIsLostEndsWhatComesAfterIt) {
  for (const bool isOwners : {false, true}) {
    SCOPED_TRACE(isOwners ? "the owner's" : "this side's");
    FileMemory file(std::byte{0x5a});
    Context& context = isOwners ? *pair_.b : *pair_.a;
    const Region region =
        MUST(context.registerRegion(file.data(), kBytes, Access::kRemoteReadWrite));
    RemoteRegion lost;
    if (isOwners) lost = MUST(pair_.toB.importRegion(region.share()));
    const Signal arrived = MUST(Signal::create(pair_.toA, isOwners ? 1 : 0));
    TriggeredQueue queue = MUST(TriggeredQueue::create(pair_.toB));
    const Block before{&near_->region(), 0, &remote_, 0, 64};
    const Block bad = isOwners ? Block{&near_->region(), 0, &lost, 0, kBytes}
                               : Block{&region, 0, &remote_, 64, kBytes - 128};
    const Block after{&near_->region(), 0, &remote_, kBytes - 64, 64};
    std::vector<TriggerId> ids;
    ASSERT_OK(queue.put({&before, 1}));
    ids.push_back(MUST(queue.commit()).id);
    ASSERT_OK(queue.put({&bad, 1}));
    ASSERT_OK(queue.signal(isOwners ? 1 : 0));
    ids.push_back(MUST(queue.commit()).id);
    ASSERT_OK(queue.put({&after, 1}));
    ASSERT_OK(queue.signal(isOwners ? 1 : 0));
    ids.push_back(MUST(queue.commit()).id);
    file.lose(Loss::kUnmapped);
    for (uint64_t number = 1; number <= 3; ++number) {
      const Status got = queue.execute(ids[number - 1]);
      EXPECT_TRUE(got.isOk() || got.code() == Code::kRevoked) << got.toString();
      if (number != 1) continue;
      ASSERT_OK(queue.wait(1, kSoon));
      EXPECT_EQ(firstDifference(far_->data(), near_->data(), 64), 64u);
    }
    const Status got = queue.wait(3, kSoon);
    EXPECT_EQ(got.code(), Code::kRevoked) << got.toString();
    EXPECT_EQ(queue.poll(2).code(), Code::kRevoked);
    EXPECT_OK(queue.poll(1)) << "it was seen to be complete";
    EXPECT_EQ(arrived.value(), 0u) << "of bytes that never came";
    EXPECT_EQ(firstDifference(far_->data() + kBytes - 64, far_->shadow() + kBytes - 64, 64), 64u);
    EXPECT_OK(context.unregister(region, kSoon));
    // Another queue goes on.
    TriggeredQueue next = MUST(TriggeredQueue::create(pair_.toB));
    ASSERT_OK(next.put({&before, 1}));
    ASSERT_OK(next.execute(MUST(next.commit()).id));
    EXPECT_OK(next.wait(1, kSoon));
  }
}

// Between any two of post, commit and enqueue.
class TriggerTakenBack : public NearAndFarTest {
 protected:
  TriggerTakenBack() : NearAndFarTest(4096) {}
};

INSTANTIATE_TEST_SUITE_P(Routes, TriggerTakenBack, everyRoute(), routeName);

TEST_P(TriggerTakenBack, IsFoundWheneverItHappens) {
  for (const bool isCommitted : {false, true}) {
    SCOPED_TRACE(isCommitted ? "after the commit" : "before the commit");
    const auto provider = std::make_shared<FakeProvider>(isCommitted ? "after" : "before");
    ASSERT_OK(pair_.a->addProvider(provider).status());
    const auto arena = MUST(SharedSegment::create(4096, {}));
    provider->own(arena->data(), 4096, GetParam().shared ? arena.get() : nullptr);
    const Region region =
        MUST(pair_.a->registerRegion(arena->data(), 4096, Access::kRemoteReadWrite));
    const uint64_t ticket = provider->tickets().at(0);
    TriggeredQueue queue = MUST(TriggeredQueue::create(pair_.toB));
    const Block block{&region, 0, &remote_, 0, 4096};
    ASSERT_OK(queue.put({&block, 1}));
    Result<TriggerProgram> made = Status(Code::kInternal, "none yet");
    if (isCommitted) made = queue.commit();
    // It waits for what is under way, which is not launched: the queue keeps it in use.
    EXPECT_EQ(invalidateMemory(ticket, std::chrono::milliseconds(1)).code(), Code::kTimeout);
    if (!isCommitted) made = queue.commit();
    ASSERT_OK(made.status());
    EXPECT_EQ(queue.execute(made->id).code(), Code::kRevoked);
    EXPECT_EQ(queue.status().code(), Code::kRevoked) << queue.status().toString();
    EXPECT_OK(invalidateMemory(ticket, kSoon)) << "the queue has let go of it";
    EXPECT_OK(pair_.a->unregister(region, kSoon));
    provider->disown(arena->data());
    EXPECT_TRUE(far_->isAsExpected());
  }
}

}  // namespace
}  // namespace peerlane
