// SPDX-License-Identifier: Apache-2.0
//
// An executor that lacks something: the queue is refused by name, or takes the emitter that can do
// without it.
#include <string>
#include <vector>

#include "tests/channel/context_pair.h"

namespace peerlane {
namespace {

struct Lack {
  const char* what;  // in the sentence
  bool isOfBoth;     // the doorbell needs it, too
  void (*remove)(ExecutorAbilities&);
};
const std::vector<Lack> kLacks = {
    {"copies,", false, [](ExecutorAbilities& all) { all.ops.remove(OpCode::kCopy); }},
    {"copies of lists", false, [](ExecutorAbilities& all) { all.ops.remove(OpCode::kCopyList); }},
    {"additions to words", false, [](ExecutorAbilities& all) { all.ops.remove(OpCode::kAdd64); }},
    {"reach of the memory", false, [](ExecutorAbilities& all) { all.reachesMemory = false; }},
    {"stores of words", true, [](ExecutorAbilities& all) { all.ops.remove(OpCode::kStore); }},
    {"waits for words,", true, [](ExecutorAbilities& all) { all.ops.remove(OpCode::kWait); }},
    {"stores of 64 bits", true, [](ExecutorAbilities& all) { all.storeWidths.remove(Width::k64); }},
    {"waits for words of 64 bits", true,
     [](ExecutorAbilities& all) { all.waitWidths.remove(Width::k64); }},
    {"compare '>='", true,
     [](ExecutorAbilities& all) { all.compares.remove(Compare::kGreaterEqual); }}};

class TriggerAbilities : public NearAndFarTest {
 protected:
  TriggerAbilities() : NearAndFarTest(4096) {}
};

INSTANTIATE_TEST_SUITE_P(Routes, TriggerAbilities, testing::Values(kSelf, kMapped, kTcp),
                         routeName);

TEST_P(TriggerAbilities, WhatIsMissingIsNamedAndNeverUsed) {
  for (const Lack& lack : kLacks) {
    SCOPED_TRACE(lack.what);
    TriggerOptions options{.executor = ExecutorAbilities::cpu()};
    options.executor.name = "the one of this test";
    lack.remove(options.executor);
    const auto expectNamed = [&](const Status& status) {
      EXPECT_EQ(status.code(), Code::kNotSupported) << status.toString();
      EXPECT_NE(status.message().find(lack.what), std::string_view::npos) << status.toString();
      EXPECT_NE(status.message().find("the one of this test"), std::string_view::npos)
          << status.toString();
    };
    options.emitter = TriggerEmitter::kMapped;
    expectNamed(TriggeredQueue::create(pair_.toB, options).status());
    options.emitter = TriggerEmitter::kDoorbell;
    const auto doorbell = TriggeredQueue::create(pair_.toB, options);
    EXPECT_EQ(doorbell.isOk(), !lack.isOfBoth);
    if (lack.isOfBoth) expectNamed(doorbell.status());
    options.emitter = TriggerEmitter::kAuto;
    auto queue = TriggeredQueue::create(pair_.toB, options);
    if (lack.isOfBoth) {
      expectNamed(queue.status());
      continue;
    }
    ASSERT_OK(queue.status());
    EXPECT_EQ(queue->emitter(), "doorbell");
    EXPECT_NE(queue->whyNotOther().find(lack.what), std::string::npos) << queue->whyNotOther();
    const Block block{&near_->region(), 0, &remote_, 0, 64};
    ASSERT_OK(queue->put({&block, 1}));
    const TriggerProgram made = MUST(queue->commit());
    for (const Op& op : made.program->ops) EXPECT_TRUE(options.executor.ops.has(op.code));
    ASSERT_OK(queue->execute(made.id));
    ASSERT_OK(queue->wait(1, kSoon));
    std::memcpy(far_->shadow(), near_->shadow(), 64);
    EXPECT_TRUE(far_->isAsExpected());
  }
}

// What no program of a queue uses is not asked for.
TEST_P(TriggerAbilities, WhatIsNotNeededMayBeMissing) {
  TriggerOptions options{.executor = ExecutorAbilities::cpu()};
  for (const OpCode code : {OpCode::kFence, OpCode::kFlush}) options.executor.ops.remove(code);
  options.executor.storeWidths.remove(Width::k32);
  options.executor.waitWidths.remove(Width::k32);
  for (const Compare each : {Compare::kEqual, Compare::kAnd, Compare::kNor})
    options.executor.compares.remove(each);
  for (const auto emitter :
       {TriggerEmitter::kAuto, TriggerEmitter::kMapped, TriggerEmitter::kDoorbell}) {
    options.emitter = emitter;
    EXPECT_OK(TriggeredQueue::create(pair_.toB, options).status());
  }
  options.executor = {};
  EXPECT_EQ(TriggeredQueue::create(pair_.toB, options).status().code(), Code::kNotSupported);
}

}  // namespace
}  // namespace peerlane
