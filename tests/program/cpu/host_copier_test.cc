// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/cpu/host_copier.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "peerlane/program/cpu/cpu_program.h"
#include "tests/core/expect_ok.h"
#include "tests/core/tune_text.h"
#include "tests/program/cpu/fake_copy_machine.h"

namespace peerlane::cpu {
namespace {

// Two memories, and pieces of irregular sizes that exchange their order.
struct Pieces {
  explicit Pieces(uint64_t seed, size_t count, uint64_t mostBytes) {
    std::mt19937_64 random(seed);
    std::vector<uint64_t> sizes(count);
    for (uint64_t& size : sizes) total += size = 1 + random() % mostBytes;
    from.resize(total);
    to.assign(total, std::byte{0});
    expected.resize(total);
    for (std::byte& byte : from) byte = std::byte(random());
    uint64_t source = 0;
    uint64_t target = total;
    for (const uint64_t size : sizes) {
      target -= size;
      pieces.push_back({to.data() + target, from.data() + source, size});
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(source), size,
                  expected.begin() + static_cast<std::ptrdiff_t>(target));
      source += size;
    }
  }
  uint64_t total = 0;
  std::vector<std::byte> from, to, expected;
  std::vector<MappedPiece> pieces;
};

TEST(HostCopier, PiecesAreCutForTheTeamAtAnyByte) {
  Metrics metrics;
  const HostCopier copier = MUST(HostCopier::create({}, 3, metrics));
  ASSERT_NE(copier.team(), nullptr);
  for (uint64_t round = 0; round < 6; ++round) {
    Pieces list(round, round % 2 == 0 ? 700 : 5, round % 2 == 0 ? 9000 : 2 << 20);
    copier.copy({list.total, list.pieces.size()}, list.pieces, list.total);
    EXPECT_TRUE(list.to == list.expected) << round;
  }
  EXPECT_NE(copier.explain().find("; 3 threads help"), std::string::npos) << copier.explain();
}

TEST(HostCopier, WithoutATeamItIsTheInstructionAlone) {
  Metrics metrics;
  const HostCopier copier = MUST(HostCopier::create({}, 0, metrics));
  EXPECT_EQ(copier.team(), nullptr);
  EXPECT_EQ(copier.least(), CopyTrials::kLeastBytes);
  EXPECT_EQ(copier.explain(), CopyTrials::ofProcess()->toString());
}

TEST(HostCopier, TheTuneFileOfTheContextCounts) {
  Metrics metrics;
  const TuneText text("copy_movsb = 64K\n");
  Config config;
  config.tuneFile = text.path();
  const auto copier = HostCopier::create(config, 0, metrics);
#if defined(__x86_64__)
  ASSERT_TRUE(copier.isOk()) << copier.status().toString();
  EXPECT_EQ(copier->least(), 64u << 10);
  EXPECT_EQ(copier->explain(), text.path() + ": memcpy from 0B movsb from 64KiB");
#else
  EXPECT_EQ(copier.status().code(), Code::kNotSupported);
#endif
  config.tuneFile = "/nonexistent/tune";
  EXPECT_EQ(HostCopier::create(config, 0, metrics).status().code(), Code::kUnavailable);
}

// Runs of programs that use it: whole, by budgets that end inside of pieces, and by block numbers.
class LargeRun : public testing::Test {
 protected:
  LargeRun() {
    for (size_t i = 0; i < from_.size(); ++i) from_[i] = std::byte(i * 31 + i / 4093);
  }
  void prepare(CopyLayout layout) {
    ProgramBuilder builder("large");
    const TargetId to = builder.local("to");
    const TargetId from = builder.local("from");
    layout.first.to = to;
    layout.first.from = from;
    for (Segment& segment : layout.segments) {
      segment.to = to;
      segment.from = from;
    }
    builder.copyList(std::move(layout));
    ASSERT_OK(prepared_.prepare(builder.build(),
                                {{{.address = to_.data(), .bytes = to_.size()},
                                  {.address = from_.data(), .bytes = from_.size()}},
                                 nullptr},
                                &copier_));
  }
  void run(uint64_t budget, Indices indices = {}) {
    std::fill(to_.begin(), to_.end(), std::byte{0});
    CpuRun run;
    run.start(prepared_, {}, indices);
    uint64_t turns = 0;
    while (run.advance(budget) != Step::kEnded) ASSERT_LT(++turns, kBytes);
    EXPECT_EQ(run.code(), Code::kOk);
    EXPECT_EQ(run.bytesMoved(), kBytes);
    if (budget < kBytes) {
      EXPECT_GE(turns, (kBytes - 1) / budget);
    }
  }
  static constexpr uint64_t kBytes = 6 << 20;
  static constexpr uint64_t kBlock = 16 << 10;
  static constexpr uint32_t kBlocks = kBytes / kBlock;

  Metrics metrics_;
  HostCopier copier_ = MUST(HostCopier::create({}, 2, metrics_));
  std::vector<std::byte> from_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> to_ = std::vector<std::byte>(kBytes);
  CpuProgram prepared_;
};

TEST_F(LargeRun, OfOnePiece) {
  prepare({.segments = {{.bytes = kBytes}}});
  for (const uint64_t budget : {kBytes + 1, kBytes, uint64_t{1000003}, uint64_t{700000}}) {
    run(budget);
    EXPECT_TRUE(to_ == from_) << budget;
  }
  std::fill(to_.begin(), to_.end(), std::byte{0});
  ASSERT_TRUE(prepared_.isStraight());
  prepared_.runStraight();
  EXPECT_TRUE(to_ == from_);
}

// However small the parts are that budgets cut.
TEST_F(LargeRun, IsOneTrialInParts) {
  FakeCopyMachine fake({100, 100, 100, 100});
  const auto trials = std::make_shared<CopyTrials>(fake.machine());
  copier_ = MUST(HostCopier::create({}, 0, metrics_, trials));
  prepare({.segments = {{.bytes = kBytes}}});
  run(1 << 20);
  EXPECT_TRUE(to_ == from_) << "wrong bytes";
  EXPECT_EQ(fake.bytesBy(CopyInstruction::kMemcpy), kBytes);
  ASSERT_TRUE(prepared_.isStraight());
  prepared_.runStraight();
  EXPECT_EQ(fake.bytesBy(CopyInstruction::kMemcpy), 2 * kBytes);
  EXPECT_EQ(copier_.explain(),
            "measured here: memcpy, from 1MiB memcpy until measured, from 4MiB memcpy so far, from "
            "16MiB memcpy until measured");
}

TEST_F(LargeRun, OfPiecesOfAllSizes) {
  CopyLayout layout;
  uint64_t at = 0;
  for (uint64_t i = 0; at < kBytes; ++i) {
    const uint64_t bytes = std::min(kBytes - at, 1 + i * 7919 % 300000);
    layout.segments.push_back({.toOffset = at, .fromOffset = at, .bytes = bytes});
    at += bytes;
  }
  prepare(std::move(layout));
  for (const uint64_t budget : {kBytes, uint64_t{1 << 20}, uint64_t{65537}}) {
    run(budget);
    EXPECT_TRUE(to_ == from_) << budget;
  }
}

TEST_F(LargeRun, OfNumberedBlocks) {
  prepare({.kind = CopyLayout::Kind::kIndexed,
           .first = {.bytes = kBlock},
           .toStride = kBlock,
           .fromStride = kBlock,
           .count = kBlocks,
           .toLimit = kBlocks,
           .fromLimit = kBlocks});
  std::vector<uint32_t> to(kBlocks), from(kBlocks);
  for (uint32_t i = 0; i < kBlocks; ++i) {
    to[i] = i * 5 % kBlocks;  // 5 and 384 have no common divisor
    from[i] = kBlocks - 1 - i;
  }
  for (const uint64_t budget : {kBytes, uint64_t{100000}}) {
    run(budget, {to, from});
    for (uint32_t i = 0; i < kBlocks; ++i)
      ASSERT_TRUE(std::equal(to_.begin() + to[i] * kBlock, to_.begin() + (to[i] + 1) * kBlock,
                             from_.begin() + from[i] * kBlock))
          << i;
  }
}

}  // namespace
}  // namespace peerlane::cpu
