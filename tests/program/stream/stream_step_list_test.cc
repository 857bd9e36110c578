// SPDX-License-Identifier: Apache-2.0
//
// Which kernel runs which program: the protocols of small messages must get the one that is made
// for their shape, and what differs from it by a little must not. Needs no GPU.
#include "peerlane/program/stream/message/stream_step_list.h"

#include <gtest/gtest.h>

#include <string>

#include "peerlane/channel/protocol/device_get_protocol.h"
#include "peerlane/channel/protocol/device_list_protocol.h"
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
  const auto made = StreamStepList::lower(program, {.targets = std::move(targets)}, rules);
  return made.isOk() ? (*made)->kernelName() : made.status().toString();
}

using Area = DeviceArea;
const BoundTarget kLate;

std::vector<BoundTarget> sendTargets() {
  return {kLate, at(farWords, Area::kInboxOffset), at(nearWords, Area::kCreditsOffset)};
}

TEST(StreamStepListTest, EagerMessagesTravelInPackets) {
  EXPECT_EQ("packets", kernelOf(streamEagerSend(), sendTargets()));
  EXPECT_EQ("packets", kernelOf(streamEagerRecv(), {kLate, at(nearWords, Area::kInboxOffset),
                                                    at(farWords, Area::kCreditsOffset)}));
}

TEST(StreamStepListTest, WhatOnlyStoresOrWaitsIsARingSlot) {
  EXPECT_EQ("ring slot", kernelOf(streamPutHead(), {at(farWords, Area::kPostedOffset),
                                                    at(nearWords, Area::kFreeOffset)}));
  EXPECT_EQ("ring slot",
            kernelOf(streamPutTail(),
                     {at(nearWords, Area::kDoneOffset), at(nearWords, Area::kFreeOffset)},
                     {{{.target = PutTailOps::kDone, .offset = Area::kBytesAt}}}));
}

TEST(StreamStepListTest, OffersAreRingSlotsAndGetsHaveTheirOwn) {
  EXPECT_EQ("ring slot", kernelOf(streamGetHead(), {at(farWords, Area::kOfferedOffset),
                                                    at(nearWords, Area::kTakenOffset)}));
  const std::vector<BoundTarget> ends = {at(nearWords, Area::kTakenOffset)};
  StepRules looks;
  looks.accepted = {.target = GetTailOps::kTaken, .offset = Area::kAcceptedAt};
  auto made = StreamStepList::lower(streamGetTail(), {.targets = ends}, looks);
  ASSERT_OK(made.status());
  EXPECT_STREQ("get end", (*made)->kernelName());
  Program longer = streamGetTail();
  longer.ops.push_back(longer.ops.front());
  EXPECT_EQ(Code::kNotSupported,
            StreamStepList::lower(longer, {.targets = ends}, looks).status().code());
}

TEST(StreamStepListTest, ListsHaveTheirOwnAndNoOther) {
  const std::vector<BoundTarget> heads = {kLate, at(farWords, Area::kListOffset),
                                          at(farWords, Area::kListPostedOffset),
                                          at(nearWords, Area::kListFreeOffset)};
  StepRules copies;
  copies.copiesWords = true;
  const auto made = StreamStepList::lower(streamListHead(), {.targets = heads}, copies);
  ASSERT_OK(made.status());
  EXPECT_STREQ("list head", (*made)->kernelName());
  // The words come with each call.
  EXPECT_EQ(Code::kInternal, (*made)->launch({}, {}, {}, nullptr, nullptr).code());
  Program other = streamListHead();
  std::swap(other.ops[0], other.ops[1]);
  EXPECT_EQ(Code::kNotSupported,
            StreamStepList::lower(other, {.targets = heads}, copies).status().code());
  // Without regions to look up.
  StepRules looks;
  looks.expected = {{{.target = ListSendOps::kPosted, .offset = Area::kShapeAt}}};
  looks.lookup.list = {.target = ListSendOps::kList};
  looks.lookup.regionsAt = Area::kRegionsAt;
  const std::vector<BoundTarget> sends = {kLate, kLate, at(nearWords, Area::kListOffset),
                                          at(nearWords, Area::kListPostedOffset),
                                          at(farWords, Area::kListDoneOffset)};
  EXPECT_EQ(Code::kNotSupported,
            StreamStepList::lower(streamListSend(), {.targets = sends}, looks).status().code());
}

TEST(StreamStepListTest, WhatIsLeftOutWithACopyNeedsAKernelOfItsOwn) {
  StepRules leavesOut;
  leavesOut.acceptingStore = 1;
  const std::vector<BoundTarget> targets = {at(nearWords, Area::kDoneOffset),
                                            at(nearWords, Area::kFreeOffset)};
  EXPECT_EQ(
      Code::kNotSupported,
      StreamStepList::lower(streamPutTail(), {.targets = targets}, leavesOut).status().code());
}

// The general way is DeviceExecutor::prepare().
TEST(StreamStepListTest, OthersAreRefused) {
  const std::vector<BoundTarget> targets = {at(farWords, Area::kPostedOffset),
                                            at(nearWords, Area::kFreeOffset)};
  const auto refused = [&](const Program& program) {
    return StreamStepList::lower(program, {.targets = targets}, {}).status().code() ==
           Code::kNotSupported;
  };
  // Slots that no mask finds, and too many.
  for (const uint32_t slots : {3u, 64u})
    EXPECT_TRUE(refused(streamPutHead({.slots = slots}))) << slots << " slots";
  Program program = streamPutHead();
  program.ops.push_back(program.ops.back());
  program.ops.push_back(program.ops.back());
  EXPECT_TRUE(refused(program)) << "a third store";
  program = streamPutHead();
  std::swap(program.ops[0], program.ops[1]);
  EXPECT_TRUE(refused(program)) << "a store before the wait";
}

TEST(StreamStepListTest, OtherUsesOfPacketsAreRefused) {
  const auto refused = [](const Program& program, const std::vector<BoundTarget>& targets) {
    return kernelOf(program, targets).find("LL packets") != std::string::npos;
  };
  EXPECT_TRUE(refused(streamEagerSend({.slots = 3}), sendTargets()));
  Program program = streamEagerSend();
  program.ops.push_back(program.ops.front());
  EXPECT_TRUE(refused(program, sendTargets())) << "a wait behind the copy";
  program = streamEagerSend();
  std::swap(program.ops[0], program.ops[1]);
  EXPECT_TRUE(refused(program, sendTargets())) << "a copy before the wait";
  program = streamEagerRecv();
  program.ops[1].bytes = 8;
  EXPECT_TRUE(refused(
      program, {kLate, at(nearWords, Area::kInboxOffset), at(farWords, Area::kCreditsOffset)}))
      << "less than what was waited for";
}

}  // namespace
}  // namespace peerlane::stream
