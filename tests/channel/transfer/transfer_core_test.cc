// SPDX-License-Identifier: Apache-2.0
//
// Where a run stands, as dumps and errors say it.
#include "peerlane/channel/transfer/transfer_core.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>

#include "tests/program/model/scripted_agent.h"

namespace peerlane {
namespace {

// Waits for a word here, then puts 8 bytes through an agent.
class DescribeRun : public testing::Test {
 protected:
  DescribeRun() {
    remote_.linkKey = std::bit_cast<uint64_t>(far_.data());
    remote_.grant.bytes = far_.size();
    agent_.sendAll(true);
    ProgramBuilder builder("example");
    const TargetId here = builder.local("here");
    const TargetId there = builder.remote("there");
    builder.wait({.target = here}, {.delta = 42});
    builder.copy({.target = there}, {.target = here}, 8);
    EXPECT_TRUE(program_
                    .prepare(builder.build(), {{{.address = near_.data(), .bytes = near_.size()},
                                                {.bytes = far_.size(), .remote = &remote_}},
                                               &mailbox_})
                    .isOk());
    run_.start(program_, {});
  }
  void reachTheEnd() {
    storeWord(near_.data(), Width::k64, 42, std::memory_order_release);
    ASSERT_EQ(run_.advance(UINT64_MAX), cpu::Step::kBlocked);
  }

  alignas(8) std::array<std::byte, 64> near_{};
  std::array<std::byte, 64> far_{};
  RemoteMemory remote_;
  ScriptedAgent agent_;
  Mailbox mailbox_{agent_};
  cpu::CpuProgram program_;
  cpu::CpuRun run_;
};

TEST_F(DescribeRun, AtAWordThatItWaitsFor) {
  ASSERT_EQ(run_.advance(UINT64_MAX), cpu::Step::kBlocked);
  EXPECT_EQ(describeRun(program_, run_),
            "example op 1 of 2, waits for a word that is 0 to reach 42");
  run_.cancel(Code::kCancelled);
  EXPECT_EQ(run_.advance(UINT64_MAX), cpu::Step::kEnded);
}

// A word that is there already holds nobody up, though the run has not gone on yet.
TEST_F(DescribeRun, AtAWordThatIsThere) {
  ASSERT_EQ(run_.advance(UINT64_MAX), cpu::Step::kBlocked);
  storeWord(near_.data(), Width::k64, 42, std::memory_order_release);
  EXPECT_EQ(describeRun(program_, run_), "example op 1 of 2");
  ASSERT_EQ(run_.advance(UINT64_MAX), cpu::Step::kBlocked);
  EXPECT_TRUE(agent_.finishOne());
  EXPECT_EQ(run_.advance(UINT64_MAX), cpu::Step::kEnded);
}

TEST_F(DescribeRun, PastItsLastOp) {
  reachTheEnd();
  EXPECT_EQ(describeRun(program_, run_),
            "waits for the agent's confirmation of all 2 ops of example");
  EXPECT_TRUE(agent_.finishOne());
  EXPECT_EQ(run_.advance(UINT64_MAX), cpu::Step::kEnded);
  EXPECT_EQ(run_.code(), Code::kOk);
}

// "The transfer failed at ..."
TEST_F(DescribeRun, RefusedByTheAgent) {
  reachTheEnd();
  EXPECT_TRUE(agent_.finishOne(Code::kPermissionDenied));
  EXPECT_EQ(run_.advance(UINT64_MAX), cpu::Step::kEnded);
  EXPECT_EQ(run_.code(), Code::kPermissionDenied);
  EXPECT_EQ(describeRun(program_, run_), "the agent's confirmation of all 2 ops of example");
}

}  // namespace
}  // namespace peerlane
