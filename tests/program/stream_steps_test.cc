// SPDX-License-Identifier: Apache-2.0
//
// Which kernel runs which program: the protocols of small messages must get the one that is made
// for their shape, and what differs from it by a little must not. Needs no GPU.
#include "peerlane/program/stream/stream_steps.h"

#include <gtest/gtest.h>

#include <string>

#include "peerlane/channel/device_protocol.h"
#include "tests/core/expect_ok.h"

namespace peerlane::stream {
namespace {

alignas(64) std::byte nearWords[DeviceArea::kBytes];
alignas(64) std::byte farWords[DeviceArea::kBytes];

BoundTarget at(std::byte* words, uint64_t offset) {
  return {.address = words + offset, .bytes = DeviceArea::kBytes - offset};
}

std::string kernelOf(const Program& program, std::vector<BoundTarget> targets,
                     std::vector<StepRules::Expected> expected = {}) {
  StepRules rules;
  rules.expected = std::move(expected);
  const auto made = StreamSteps::lower(program, {.targets = std::move(targets)}, rules);
  return made.isOk() ? (*made)->kernelName() : made.status().toString();
}

using Area = DeviceArea;
const BoundTarget kLate;

std::vector<BoundTarget> sendTargets() {
  return {kLate, at(farWords, Area::kInboxOffset), at(nearWords, Area::kCreditsOffset)};
}

TEST(StreamStepsTest, SmallMessagesAreTurns) {
  EXPECT_EQ("turn", kernelOf(streamEagerSend(), sendTargets()));
  EXPECT_EQ("turn", kernelOf(streamEagerRecv(),
                             {kLate, at(nearWords, Area::kInboxOffset),
                              at(farWords, Area::kCreditsOffset), at(nearWords, Area::kFreeOffset)},
                             {{{.target = EagerRecvOps::kInbox, .offset = Area::kBytesAt}}}));
  EXPECT_EQ("turn", kernelOf(streamPutHead(), {at(farWords, Area::kPostedOffset),
                                               at(nearWords, Area::kFreeOffset)}));
  EXPECT_EQ("turn", kernelOf(streamPutTail(),
                             {at(nearWords, Area::kDoneOffset), at(farWords, Area::kCreditsOffset),
                              at(nearWords, Area::kFreeOffset)},
                             {{{.target = PutTailOps::kDone, .offset = Area::kBytesAt}}}));
}

TEST(StreamStepsTest, OthersAreStepByStep) {
  // Slots that no mask finds, too many, and more bytes than a turn moves.
  for (const StreamShape& shape :
       {StreamShape{.slots = 3}, StreamShape{.slots = 64}, StreamShape{.eagerBytes = 4096}})
    EXPECT_EQ("steps", kernelOf(streamEagerSend(shape), sendTargets()))
        << shape.slots << " slots, " << shape.eagerBytes << " bytes";
  Program program = streamEagerSend();
  program.ops.push_back(program.ops.back());
  program.ops.push_back(program.ops.back());
  EXPECT_EQ("steps", kernelOf(program, sendTargets())) << "a third store";
  program = streamEagerSend();
  // What is told last must be this side's own: its completion word has no fence behind it.
  program.ops.push_back(program.ops.back());
  EXPECT_EQ("steps", kernelOf(program, sendTargets()));
  program = streamEagerSend();
  std::swap(program.ops[0], program.ops[1]);
  EXPECT_EQ("steps", kernelOf(program, sendTargets())) << "a copy before the wait";
}

}  // namespace
}  // namespace peerlane::stream
