// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/cpu/copy_trials.h"

#include <gtest/gtest.h>

#include <array>
#include <latch>
#include <span>
#include <thread>
#include <vector>

#include "peerlane/program/cpu/host_copier.h"
#include "tests/core/expect_ok.h"
#include "tests/core/tune_text.h"
#include "tests/program/cpu/fake_copy_machine.h"

namespace peerlane::cpu {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class CopyTrialsTest : public testing::Test {
 protected:
  // As a slow machine and one of AMD's family 25, model 1, do, if process_vm is left out there.
  static constexpr FakeCopyMachine::Costs kStreamingIsBest{200, 100, 190, 210};
  static constexpr FakeCopyMachine::Costs kMovsbIsBest{140, 280, 100, 200};
  // Trials, and the rests between those of the second round.
  static constexpr int kMostUntilDecided =
      kCopyInstructions * (CopyContest::kMostTrials + CopyContest::kRests);

  // Of a copier with `threads` that help.
  void open(CopyMachine machine, uint32_t threads = 0, const Config& config = {}) {
    trials_ = std::make_shared<CopyTrials>(std::move(machine));
    copier_ = MUST(HostCopier::create(config, threads, metrics_, trials_));
  }
  // One transfer in parts of at most `atOnce` bytes.
  void copy(uint64_t bytes, uint64_t atOnce = UINT64_MAX, size_t pieces = 1) {
    if (from_.size() < bytes) {
      from_.resize(bytes);
      for (size_t i = 0; i < bytes; ++i) from_[i] = std::byte(i * 13 + i / 4099);
    }
    to_.assign(bytes, std::byte{0});
    for (uint64_t at = 0; at < bytes; at += std::min(atOnce, bytes - at)) {
      const MappedPiece piece{to_.data() + at, from_.data() + at, std::min(atOnce, bytes - at)};
      copier_.copy({bytes, pieces}, {&piece, 1}, piece.bytes);
    }
    ASSERT_TRUE(std::equal(to_.begin(), to_.end(), from_.begin())) << "wrong bytes";
  }
  void copyUntilDecided(uint64_t bytes, CopyInstruction expected) {
    const CopyTrials::Kind kind = kindOf(bytes);
    for (int i = 0; !trials_->isDecided(kind); ++i) {
      ASSERT_LT(i, kMostUntilDecided) << trials_->toString();
      copy(bytes);
    }
    EXPECT_EQ(trials_->best(kind), expected) << trials_->toString();
  }
  CopyTrials::Kind kindOf(uint64_t bytes) {
    return trials_->kindOf(bytes, bytes, to_.data(), from_.data());
  }

  Metrics metrics_;
  std::shared_ptr<CopyTrials> trials_;
  HostCopier copier_;
  std::vector<std::byte> from_, to_;
};

TEST_F(CopyTrialsTest, TheFirstTenCopiesAreNotFarFromTheBest) {
  for (const auto& [costs, best] : {std::pair(kStreamingIsBest, CopyInstruction::kStreaming),
                                    std::pair(kMovsbIsBest, CopyInstruction::kMovsb)})
    for (const uint64_t bytes : {kMiB, 4 * kMiB}) {
      FakeCopyMachine fake(costs);
      open(fake.machine());
      const double start = FakeCopyMachine::now();
      for (int i = 0; i < 10; ++i) copy(bytes);
      // Copies that are not timed any more do not go by the fake machine.
      uint64_t rest = 10 * bytes;
      for (size_t i = 0; i < kCopyInstructions; ++i)
        rest -= fake.bytesBy(static_cast<CopyInstruction>(i));
      const double least = costs[static_cast<size_t>(best)] / 1024;
      const double made = FakeCopyMachine::now() - start + least * static_cast<double>(rest);
      EXPECT_GE(least * 10 * static_cast<double>(bytes) / made, 0.8)
          << bytes << " bytes, " << trials_->toString();
      copyUntilDecided(bytes, best);
    }
}

TEST_F(CopyTrialsTest, NoSlowerOneMakesMoreThanFourCopies) {
  FakeCopyMachine fake({110, 100, 105, 400});
  open(fake.machine());
  copyUntilDecided(4 * kMiB, CopyInstruction::kStreaming);
  EXPECT_LE(fake.bytesBy(CopyInstruction::kMemcpy), 16 * kMiB);
  EXPECT_LE(fake.bytesBy(CopyInstruction::kMovsb), 16 * kMiB);
  // Given up each time after two probes.
  EXPECT_LE(fake.bytesBy(CopyInstruction::kProcessVm), 2 * kMiB);
}

TEST_F(CopyTrialsTest, SizesHaveContestsOfTheirOwn) {
  FakeCopyMachine fake(kMovsbIsBest);
  open(fake.machine());
  copyUntilDecided(kMiB, CopyInstruction::kMovsb);
  EXPECT_TRUE(trials_->isDecided(kindOf(4 * kMiB - 1)));
  EXPECT_FALSE(trials_->isDecided(kindOf(4 * kMiB)));
  EXPECT_EQ(trials_->best(kindOf(4 * kMiB)), CopyInstruction::kMemcpy);
  EXPECT_EQ(kindOf(64 * kMiB), kindOf(uint64_t{1} << 40));
}

TEST_F(CopyTrialsTest, SmallCopiesAndShortPiecesAreMemcpys) {
  FakeCopyMachine fake(kMovsbIsBest);
  open(fake.machine(), 1);
  copy(kMiB - 1);
  copy(2 * kMiB, UINT64_MAX, 2 * kMiB / (CopyTrials::kLeastPiece - 1) + 1);
  for (const CopyInstruction by : {CopyInstruction::kMemcpy, CopyInstruction::kMovsb})
    EXPECT_EQ(fake.bytesBy(by), 0u);
}

TEST_F(CopyTrialsTest, PiecesBelow64KiBHaveContestsOfTheirOwn) {
  FakeCopyMachine fake(kMovsbIsBest);
  open(fake.machine());
  for (int i = 0; i < kMostUntilDecided; ++i) copy(2 * kMiB, UINT64_MAX, 128);
  EXPECT_FALSE(trials_->isDecided(kindOf(2 * kMiB)));
  EXPECT_EQ(copier_.explain(),
            "measured here: memcpy, from 1MiB memcpy until measured; pieces below 64KiB: from 1MiB "
            "movsb, from 4MiB memcpy until measured");
}

// As the slices of a port's copy: too small to be given up each by itself.
TEST_F(CopyTrialsTest, ADearTrialIsGivenUpBetweenPartsOfATransfer) {
  FakeCopyMachine fake({100, 300, 300, 300});
  open(fake.machine());
  for (int i = 0; i < 20; ++i) copy(16 * kMiB, kMiB / 4);
  // An eighth, in each of two rounds.
  for (size_t i = 1; i < kCopyInstructions; ++i)
    EXPECT_EQ(fake.bytesBy(static_cast<CopyInstruction>(i)), 4 * kMiB);
}

// The system ran others for ten times as long as the copy takes.
TEST_F(CopyTrialsTest, TimeInWhichTheThreadDidNotRunDoesNotCount) {
  FakeCopyMachine fake(kMovsbIsBest);
  CopyMachine machine = fake.machine();
  uint64_t lost = 0;
  machine.clocks = [&lost, clocks = machine.clocks] {
    CopyClocks now = clocks();
    now.passed += lost;
    return now;
  };
  fake.onCopy = [&] {
    if (fake.bytesBy(CopyInstruction::kMovsb) != 0) lost += 1'000'000;
  };
  open(std::move(machine));
  copyUntilDecided(kMiB, CopyInstruction::kMovsb);
}

TEST_F(CopyTrialsTest, WhereTheSystemCountsCoarselyTheTimeThatPassedCounts) {
  FakeCopyMachine fake(kMovsbIsBest);
  CopyMachine machine = fake.machine();
  machine.clocks = [clocks = machine.clocks] {
    CopyClocks now = clocks();
    now.used = now.used / 10'000'000 * 10'000'000;
    return now;
  };
  open(std::move(machine));
  copyUntilDecided(kMiB, CopyInstruction::kMovsb);
}

// As the slices between which a progress thread looks at other transfers.
TEST_F(CopyTrialsTest, PartsOfATransferAreOneTrial) {
  FakeCopyMachine fake({100, 110, 115, 120});
  open(fake.machine());
  for (int trial = 0; trial < 2; ++trial) copy(4 * kMiB, kMiB);
  EXPECT_EQ(fake.bytesBy(CopyInstruction::kMemcpy), 8 * kMiB);
  copy(4 * kMiB, kMiB);
  EXPECT_EQ(fake.bytesBy(CopyInstruction::kStreaming), 4 * kMiB);
}

TEST_F(CopyTrialsTest, CopiesToNewMemoryAreMadeByTheBestAndCountForNothing) {
  FakeCopyMachine fake(kMovsbIsBest);
  open(fake.machine());
  fake.isMemoryNew = true;
  for (int i = 0; i < 50; ++i) copy(kMiB);
  EXPECT_GT(fake.bytesBy(CopyInstruction::kMemcpy), 0u);
  EXPECT_EQ(fake.bytesBy(CopyInstruction::kStreaming), 0u);
  EXPECT_EQ(fake.bytesBy(CopyInstruction::kMovsb), 0u);
  fake.isMemoryNew = false;
  copyUntilDecided(kMiB, CopyInstruction::kMovsb);
}

// As the code of an instruction does when it is used for the first time.
TEST_F(CopyTrialsTest, PagesThatTheFirstSliceTouchesDoNotEndATrial) {
  FakeCopyMachine fake(kMovsbIsBest);
  open(fake.machine());
  fake.onCopy = [&fake] { fake.isMemoryNew = false; };
  for (int i = 0; i < 3; ++i) {
    fake.isMemoryNew = true;
    copy(kMiB);
  }
  EXPECT_GT(fake.bytesBy(CopyInstruction::kStreaming), 0u);
}

// Where one call is for more than 32 MiB it stores past the caches; the machine copies nothing.
TEST_F(CopyTrialsTest, MovsbOfManyBytesAtOnceIsNotJudgedByFew) {
  double now = 0;
  CopyMachine machine;
  machine.candidates.fill(true);
  machine.copy = [&now](CopyInstruction by, std::byte*, const std::byte*, uint64_t bytes) {
    const bool isFast = by == CopyInstruction::kMovsb && bytes > 32 * kMiB;
    now += static_cast<double>(bytes) / 1024 *
           (isFast                              ? 60
            : by == CopyInstruction::kStreaming ? 80
                                                : 160);
  };
  machine.clocks = [&now] {
    return CopyClocks{.passed = static_cast<uint64_t>(now), .used = static_cast<uint64_t>(now)};
  };
  machine.pages = [] { return uint64_t{0}; };
  machine.isFar = nullptr;
  std::byte untouched;
  const MappedPiece piece{&untouched, &untouched, 64 * kMiB};
  const std::array<MappedPiece, 2> halves{MappedPiece{&untouched, &untouched, 32 * kMiB},
                                          MappedPiece{&untouched, &untouched, 32 * kMiB}};
  for (const auto& [pieces, best] :
       {std::pair(std::span<const MappedPiece>(&piece, 1), CopyInstruction::kMovsb),
        std::pair(std::span<const MappedPiece>(halves), CopyInstruction::kStreaming)}) {
    open(machine);
    const CopyTrials::Kind kind = kindOf(64 * kMiB);
    for (int i = 0; !trials_->isDecided(kind); ++i) {
      ASSERT_LT(i, kMostUntilDecided) << trials_->toString();
      copier_.copy({64 * kMiB, pieces.size()}, pieces, 64 * kMiB);
    }
    EXPECT_EQ(trials_->best(kind), best) << trials_->toString();
  }
}

TEST_F(CopyTrialsTest, WhileOneCopyIsTimedOthersAreNot) {
  FakeCopyMachine fake(kMovsbIsBest);
  open(fake.machine());
  std::vector<std::byte> from(kMiB, std::byte{5}), to(kMiB);
  const MappedPiece piece{to.data(), from.data(), kMiB};
  bool isInside = false;
  fake.onCopy = [&] {
    if (std::exchange(isInside, true)) return;
    const uint64_t before = fake.bytesBy(CopyInstruction::kMemcpy);
    std::thread other([&] { copier_.copy({kMiB, 1}, {&piece, 1}, kMiB); });
    other.join();
    EXPECT_EQ(fake.bytesBy(CopyInstruction::kMemcpy), before);
  };
  copy(kMiB);
  EXPECT_TRUE(isInside);
  EXPECT_TRUE(to == from) << "wrong bytes";
  fake.onCopy = nullptr;
  copyUntilDecided(kMiB, CopyInstruction::kMovsb);
}

TEST_F(CopyTrialsTest, FirstCopiesOfSeveralThreadsFindTheSame) {
  FakeCopyMachine fake(kMovsbIsBest);
  open(fake.machine());
  constexpr int kThreads = 4;
  std::latch begin(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      std::vector<std::byte> from(kMiB, std::byte{7}), to(kMiB);
      const MappedPiece piece{to.data(), from.data(), kMiB};
      begin.arrive_and_wait();
      for (int copies = 0; copies < 20; ++copies) copier_.copy({kMiB, 1}, {&piece, 1}, kMiB);
      EXPECT_TRUE(to == from) << "wrong bytes";
    });
  for (std::thread& thread : threads) thread.join();
  copyUntilDecided(kMiB, CopyInstruction::kMovsb);
}

TEST_F(CopyTrialsTest, ATeamTimesItsPartsWhereverTheyAreCopied) {
  FakeCopyMachine fake(kMovsbIsBest);
  open(fake.machine(), 2);
  copyUntilDecided(4 * kMiB, CopyInstruction::kMovsb);
  copy(4 * kMiB);
  EXPECT_EQ(copier_.explain(),
            "measured here: memcpy, from 1MiB memcpy until measured, from 4MiB movsb, from 16MiB "
            "memcpy until measured; 2 threads help");
}

TEST_F(CopyTrialsTest, FarMemoryHasContestsOfItsOwn) {
  FakeCopyMachine fake(kMovsbIsBest);
  CopyMachine machine = fake.machine();
  bool isFar = true;
  int asked = 0;
  machine.isFar = [&](const void* to, const void* from) {
    EXPECT_EQ(to, to_.data());
    EXPECT_EQ(from, from_.data());
    ++asked;
    return isFar;
  };
  open(std::move(machine));
  copyUntilDecided(kMiB, CopyInstruction::kMovsb);
  isFar = false;
  EXPECT_FALSE(trials_->isDecided(kindOf(kMiB)));
  EXPECT_EQ(copier_.explain(),
            "measured here: memcpy, from 1MiB memcpy until measured; another NUMA node: from 1MiB "
            "movsb, from 4MiB memcpy until measured");
  copyUntilDecided(kMiB, CopyInstruction::kMovsb);
  // Where both are the same nobody asks.
  const int before = asked;
  copy(kMiB);
  EXPECT_EQ(asked, before);
}

TEST_F(CopyTrialsTest, ATuneFileFixesTheInstructionFromTheStart) {
  const TuneText text("copy_memcpy = 0\ncopy_process_vm = 1G\n");
  Config config;
  config.tuneFile = text.path();
  FakeCopyMachine fake(kMovsbIsBest);
  open(fake.machine(), 0, config);
  copy(2 * kMiB);
  EXPECT_EQ(fake.bytesBy(CopyInstruction::kMemcpy), 0u);
  EXPECT_EQ(copier_.explain(), text.path() + ": memcpy from 0B process_vm from 1GiB");
}

// The machine itself: whatever it finds, bytes are right, and it finds something.
TEST_F(CopyTrialsTest, ThisMachineDecides) {
  open(CopyMachine());
  for (int i = 0; !trials_->isDecided(kindOf(kMiB)); ++i) {
    ASSERT_LT(i, 10000) << trials_->toString();
    copy(kMiB);
  }
  EXPECT_TRUE(CopyMachine().candidates[static_cast<size_t>(trials_->best(kindOf(kMiB)))]);
  copy(kMiB);
}

}  // namespace
}  // namespace peerlane::cpu
