// SPDX-License-Identifier: Apache-2.0
//
// What the CPU executor refuses when a program is prepared, and what it lowers it to.
#include "peerlane/program/cpu/cpu_program.h"
#include "peerlane/program/words/word.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <string>

#include "tests/program/model/scripted_agent.h"

namespace peerlane::cpu {
namespace {

class CpuProgramTest : public testing::Test {
 protected:
  CpuProgramTest() {
    remote_.linkKey = std::bit_cast<uint64_t>(far_.data());
    remote_.grant.bytes = far_.size();
  }
  BoundTarget near(uint64_t bytes = 4096) { return {.address = near_.data(), .bytes = bytes}; }
  BoundTarget other(uint64_t bytes = 4096) { return {.address = other_.data(), .bytes = bytes}; }
  BoundTarget agent(uint64_t bytes = 4096) { return {.bytes = bytes, .remote = &remote_}; }
  Status prepare(Program program, std::vector<BoundTarget> targets, bool withMailbox = true) {
    return prepared_.prepare(std::move(program),
                             {std::move(targets), withMailbox ? &mailbox_ : nullptr});
  }
  static void expectRefused(const Status& status, Code code, const std::string& said) {
    EXPECT_EQ(status.code(), code) << status.toString();
    EXPECT_NE(status.message().find(said), std::string_view::npos) << status.toString();
  }
  // Two targets; a list of the given segments.
  static Program listOf(std::vector<Segment> segments, Target to = {.name = "to"},
                        Target from = {.name = "from"}) {
    ProgramBuilder builder("list");
    builder.cursor(1);
    builder.target(to);
    builder.target(from);
    builder.copyList({.segments = std::move(segments)});
    return builder.build();
  }
  static Program copyOf(uint64_t toOffset, uint64_t fromOffset, uint64_t bytes) {
    ProgramBuilder builder("copy");
    const TargetId to = builder.local("to");
    const TargetId from = builder.local("from");
    builder.copy({.target = to, .offset = toOffset}, {.target = from, .offset = fromOffset}, bytes);
    return builder.build();
  }

  std::array<std::byte, 4096> near_{};
  std::array<std::byte, 4096> other_{};
  std::array<std::byte, 4096> far_{};
  RemoteMemory remote_;
  ScriptedAgent scripted_;
  Mailbox mailbox_{scripted_};
  CpuProgram prepared_;
};

TEST_F(CpuProgramTest, CopiesBetweenMappedPlacesAreStraight) {
  ASSERT_TRUE(prepare(copyOf(10, 20, 30), {near(), other()}).isOk());
  EXPECT_TRUE(prepared_.isStraight());
  ASSERT_EQ(prepared_.mappedPieces().size(), 1u);
  EXPECT_EQ(prepared_.mappedPieces()[0].to, near_.data() + 10);
  EXPECT_EQ(prepared_.mappedPieces()[0].from, other_.data() + 20);
  EXPECT_EQ(prepared_.mappedPieces()[0].bytes, 30u);
}

TEST_F(CpuProgramTest, AWordIsStraightAWaitOrAnAgentIsNot) {
  ProgramBuilder builder("with-word");
  const TargetId to = builder.local("to");
  const TargetId from = builder.local("from");
  builder.copy({.target = to}, {.target = from}, 8)
      .add64({.target = to}, {.delta = 1}, Order::kRelease);
  ASSERT_TRUE(prepare(builder.build(), {near(), other()}).isOk());
  ASSERT_TRUE(prepared_.isStraight());
  const auto wordAt = [this] { return loadWord(near_.data(), Width::k64); };
  const uint64_t copied = loadWord(other_.data(), Width::k64);
  prepared_.runStraight();
  EXPECT_EQ(wordAt(), copied + 1) << "the copy comes first";
  ProgramBuilder waiting("with-wait");
  const TargetId word = waiting.local("to");
  waiting.copy({.target = word}, {.target = waiting.local("from")}, 8)
      .wait({.target = word}, {.delta = 1});
  ASSERT_TRUE(prepare(waiting.build(), {near(), other()}).isOk());
  EXPECT_FALSE(prepared_.isStraight());
  ASSERT_TRUE(prepare(copyOf(0, 0, 8), {agent(), other()}).isOk());
  EXPECT_FALSE(prepared_.isStraight());
  EXPECT_TRUE(prepared_.mappedPieces().empty()) << "pieces for the agent are not pieces to copy";
}

TEST_F(CpuProgramTest, EveryRangeMustLieInsideItsTarget) {
  EXPECT_TRUE(prepare(copyOf(0, 0, 4096), {near(), other()}).isOk());
  expectRefused(prepare(copyOf(1, 0, 4096), {near(), other()}), Code::kInvalidArgument,
                "'to': range [1, +4096)");
  expectRefused(prepare(copyOf(0, 4096, 1), {near(), other()}), Code::kInvalidArgument,
                "'from': range [4096, +1)");
  expectRefused(prepare(copyOf(UINT64_MAX, 0, 2), {near(), other()}), Code::kInvalidArgument,
                "lies outside its 4096");
  expectRefused(prepare(copyOf(0, 0, 4096), {near(), agent(100)}), Code::kInvalidArgument, "100");
  ProgramBuilder word("word");
  word.store({.target = word.local("word"), .offset = 4096}, {.delta = 1}, Order::kRelaxed);
  expectRefused(prepare(word.build(), {near()}), Code::kInvalidArgument,
                "'word': range [4096, +8)");
}

TEST_F(CpuProgramTest, StridedBlocksAreCheckedToTheLast) {
  const auto strided = [](uint64_t count) {
    ProgramBuilder builder("strided");
    const TargetId to = builder.local("to");
    const TargetId from = builder.local("from");
    builder.copyList({.kind = CopyLayout::Kind::kStrided,
                      .first = {to, from, 0, 0, 16},
                      .toStride = 64,
                      .fromStride = 32,
                      .count = count});
    return builder.build();
  };
  EXPECT_TRUE(prepare(strided(64), {near(), other()}).isOk());
  EXPECT_EQ(prepared_.mappedPieces().size(), 64u);
  EXPECT_EQ(prepared_.mappedPieces()[63].to, near_.data() + 63 * 64);
  EXPECT_EQ(prepared_.mappedPieces()[63].from, other_.data() + 63 * 32);
  expectRefused(prepare(strided(65), {near(), other()}), Code::kInvalidArgument, "[4096, +16)");
}

TEST_F(CpuProgramTest, IndexedListsAreCheckedByTheirLimits) {
  const auto indexed = [](uint64_t toLimit, uint64_t fromLimit) {
    ProgramBuilder builder("indexed");
    const TargetId to = builder.local("to");
    const TargetId from = builder.local("from");
    builder.copyList({.kind = CopyLayout::Kind::kIndexed,
                      .first = {to, from, 0, 0, 64},
                      .toStride = 64,
                      .fromStride = 64,
                      .count = 4,
                      .toLimit = toLimit,
                      .fromLimit = fromLimit});
    return builder.build();
  };
  EXPECT_TRUE(prepare(indexed(64, 64), {near(), other()}).isOk());
  EXPECT_FALSE(prepared_.isStraight());
  expectRefused(prepare(indexed(65, 64), {near(), other()}), Code::kInvalidArgument, "'to'");
  expectRefused(prepare(indexed(64, 65), {near(), other()}), Code::kInvalidArgument, "'from'");
}

TEST_F(CpuProgramTest, RingsMustFitAndOpsStayInsideASlot) {
  const auto ring = [](uint64_t offset) {
    ProgramBuilder builder("ring");
    const CursorId cursor = builder.cursor(1);
    const TargetId words =
        builder.target({.name = "words", .cursor = cursor, .slots = 4, .strideBytes = 64});
    builder.store({.target = words, .offset = offset}, {.delta = 1}, Order::kRelaxed);
    return builder.build();
  };
  EXPECT_TRUE(prepare(ring(56), {near(256)}).isOk());
  expectRefused(prepare(ring(64), {near(256)}), Code::kInvalidArgument, "'words'");
  expectRefused(prepare(ring(0), {near(255)}), Code::kInvalidArgument, "'words'");
}

TEST_F(CpuProgramTest, WhatIsNotBoundOrCannotBeReachedIsRefused) {
  expectRefused(prepare(copyOf(0, 0, 8), {near(), BoundTarget{}}), Code::kInvalidArgument,
                "'from' is not bound");
  expectRefused(prepare(copyOf(0, 0, 8), {near()}), Code::kInvalidArgument,
                "2 targets, 1 are bound");
  expectRefused(prepare(copyOf(0, 0, 8), {near(), agent()}, false), Code::kNotSupported,
                "no mailbox");
  expectRefused(prepare(copyOf(0, 0, 8), {agent(), agent()}), Code::kNotSupported, "both of its");
}

TEST_F(CpuProgramTest, AWaitNeedsAWordThatLoadsReach) {
  ProgramBuilder builder("wait");
  builder.wait({.target = builder.remote("word")}, {.delta = 1});
  expectRefused(prepare(builder.build(), {agent()}), Code::kNotSupported, "'word'");
}

TEST_F(CpuProgramTest, AListDoesNotMixWhoCopies) {
  ProgramBuilder builder("mixed");
  const TargetId to = builder.local("to");
  const TargetId from = builder.local("from");
  const TargetId far = builder.remote("far");
  const auto mixed = [&](std::vector<Segment> segments) {
    Program program = ProgramBuilder(builder).build();
    program.ops.push_back({.code = OpCode::kCopyList, .list = 0});
    program.lists = {{.segments = std::move(segments)}};
    return program;
  };
  const Segment mapped{to, from, 0, 0, 8};
  const Segment put{far, from, 8, 8, 8};
  const Segment got{to, far, 16, 16, 8};
  EXPECT_TRUE(prepare(mixed({mapped}), {near(), other(), agent()}).isOk());
  EXPECT_TRUE(prepare(mixed({put}), {near(), other(), agent()}).isOk());
  EXPECT_TRUE(prepare(mixed({got}), {near(), other(), agent()}).isOk());
  EXPECT_EQ(prepare(mixed({mapped, put}), {near(), other(), agent()}).code(), Code::kNotSupported);
  EXPECT_EQ(prepare(mixed({put, mapped}), {near(), other(), agent()}).code(), Code::kNotSupported);
  EXPECT_EQ(prepare(mixed({put, got}), {near(), other(), agent()}).code(), Code::kNotSupported);
}

// The mailbox hands a piece to the agent of its memory, so one that failed alone would leave a
// hole.
TEST_F(CpuProgramTest, AListOfTwoAgentsIsRefused) {
  RemoteMemory another = remote_;
  ScriptedAgent second;
  another.agent = &second;
  ProgramBuilder builder("two agents");
  const TargetId from = builder.local("from");
  const TargetId far = builder.remote("far");
  const TargetId farther = builder.remote("farther");
  Program program = builder.build();
  program.ops.push_back({.code = OpCode::kCopyList, .list = 0});
  program.lists = {{.segments = {{far, from, 0, 0, 8}, {farther, from, 8, 8, 8}}}};
  const BoundTarget of{.bytes = 4096, .remote = &another};
  EXPECT_TRUE(prepare(Program(program), {near(), agent(), agent()}).isOk());
  expectRefused(prepare(std::move(program), {near(), agent(), of}), Code::kNotSupported,
                "agents of several links");
}

// Lists are lowered when the program is prepared; rings and late targets are known only later.
TEST_F(CpuProgramTest, AListOfRingOrLateTargetsIsRefused) {
  const Segment segment{0, 1, 0, 0, 8};
  expectRefused(prepare(listOf({segment}, {.name = "to", .late = true}), {near(), other()}),
                Code::kNotSupported, "'to'");
  expectRefused(prepare(listOf({segment}, {.name = "to"},
                               {.name = "from", .cursor = 0, .slots = 2, .strideBytes = 64}),
                        {near(), other()}),
                Code::kNotSupported, "'from'");
}

TEST_F(CpuProgramTest, ADefectOfTheProgramItselfIsFound) {
  Program program = copyOf(0, 0, 8);
  program.ops[0].to.target = 9;
  expectRefused(prepare(program, {near(), other()}), Code::kInvalidArgument, "target 9");
}

TEST_F(CpuProgramTest, LimitsOfThisExecutorAreSaid) {
  ProgramBuilder cursors("cursors");
  for (uint32_t i = 0; i <= CpuRun::kMaxCursors; ++i) cursors.cursor(1);
  expectRefused(prepare(cursors.build(), {}), Code::kNotSupported, "cursors");
  ProgramBuilder late("late");
  std::vector<BoundTarget> bound;
  for (uint32_t i = 0; i < CpuRun::kMaxLateTargets; ++i) {
    late.local("plain");
    bound.push_back(near());
  }
  late.target({.name = "late", .late = true});
  bound.push_back({});
  expectRefused(prepare(late.build(), bound), Code::kNotSupported, "late targets");
}

TEST_F(CpuProgramTest, CanBeUsedAgainForAnotherProgram) {
  ASSERT_TRUE(prepare(copyOf(0, 0, 8), {agent(), other()}).isOk());
  ASSERT_TRUE(prepare(copyOf(1, 2, 3), {near(), other()}).isOk());
  EXPECT_TRUE(prepared_.isStraight());
  EXPECT_EQ(prepared_.mappedPieces().size(), 1u);
  prepared_.clear();
  EXPECT_TRUE(prepared_.program().ops.empty());
  EXPECT_TRUE(prepared_.mappedPieces().empty());
}

}  // namespace
}  // namespace peerlane::cpu
