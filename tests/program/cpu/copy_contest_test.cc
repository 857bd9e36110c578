// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/cpu/copy_contest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace peerlane::cpu {
namespace {

using Costs = std::array<double, kCopyInstructions>;
constexpr uint64_t kBytes = 4 << 20;
constexpr CopyContest::Candidates kAll{true, true, true, true};

size_t indexOf(CopyInstruction instruction) {
  return static_cast<size_t>(instruction);
}

// A program that copies kBytes again and again.
struct Copies {
  explicit Copies(CopyContest::Candidates candidates = kAll) : contest(candidates) {}

  // One copy that is timed, after those that are not, at the cost of the instruction whose trial it
  // is; returns that instruction.
  CopyInstruction copy(const Costs& costs, double disturbed = 1) {
    while (contest.rest(kBytes, kBytes)) {
    }
    const CopyInstruction by = contest.next();
    const double cost = costs[indexOf(by)] * disturbed;
    ++made[indexOf(by)];
    if (cost > contest.mostCost())
      contest.giveUp(cost);
    else
      contest.add(cost, kBytes, kBytes);
    return by;
  }
  void copyUntilDecided(const Costs& costs) {
    for (int i = 0; !contest.isDecided(); ++i) {
      ASSERT_LT(i, 100);
      copy(costs);
    }
  }

  CopyContest contest;
  std::array<uint32_t, kCopyInstructions> made{};
};

TEST(CopyContest, TheCheapestIsFoundByFewCopiesOfTheOthers) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> costs(50, 250);
  for (int round = 0; round < 200; ++round) {
    Costs table;
    for (double& cost : table) cost = costs(random);
    const auto cheapest = std::min_element(table.begin(), table.end()) - table.begin();
    Copies copies;
    copies.copyUntilDecided(table);
    EXPECT_EQ(indexOf(copies.contest.best()), static_cast<size_t>(cheapest));
    for (size_t i = 0; i < kCopyInstructions; ++i)
      EXPECT_LE(copies.made[i], 4u) << copyInstructionName(static_cast<CopyInstruction>(i));
  }
}

// Each candidate is tried once, and then most copies are the best one's until all is known.
TEST(CopyContest, AfterTheFirstRoundOthersComeRarely) {
  for (size_t cheapest = 0; cheapest < kCopyInstructions; ++cheapest) {
    Costs table{200, 200, 200, 200};
    table[cheapest] = 100;
    CopyContest contest(kAll);
    int made = 0, byOthers = 0, firstTen = 0;
    for (; !contest.isDecided(); ++made) {
      ASSERT_LT(made, 100);
      if (contest.rest(kBytes, kBytes)) continue;
      const double cost = table[indexOf(contest.next())];
      byOthers += cost > 100;
      firstTen += cost > 100 && made < 10;
      if (cost > contest.mostCost())
        contest.giveUp(cost);
      else
        contest.add(cost, kBytes, kBytes);
    }
    EXPECT_EQ(contest.best(), static_cast<CopyInstruction>(cheapest));
    EXPECT_GE(byOthers, 6) << cheapest;  // three in each round
    EXPECT_LE(firstTen, 6) << cheapest;
    EXPECT_LE(byOthers * 2, made) << cheapest;
  }
}

TEST(CopyContest, PartsOfOneTransferAreOneRest) {
  Copies copies({true, true, false, false});
  for (int trial = 0; trial < 6; ++trial) copies.copy({100, 110, 0, 0});
  for (uint32_t part = 0; part < 4 * CopyContest::kRests; ++part)
    EXPECT_TRUE(copies.contest.rest(kBytes / 4, kBytes)) << part;
  EXPECT_FALSE(copies.contest.rest(kBytes / 4, kBytes));
  EXPECT_EQ(copies.contest.next(), CopyInstruction::kStreaming);
}

TEST(CopyContest, BeforeTheFirstTrialItIsMemcpy) {
  const CopyContest contest(kAll);
  EXPECT_EQ(contest.best(), CopyInstruction::kMemcpy);
  EXPECT_EQ(contest.next(), CopyInstruction::kMemcpy);
  EXPECT_FALSE(contest.isDecided());
}

TEST(CopyContest, WithoutAnotherCandidateThereIsNothingToFindOut) {
  const CopyContest contest({});
  EXPECT_TRUE(contest.isDecided());
  EXPECT_EQ(contest.best(), CopyInstruction::kMemcpy);
}

TEST(CopyContest, WhatIsNoCandidateCopiesNothing) {
  Copies copies({true, false, true, false});
  copies.copyUntilDecided({100, 1, 50, 1});
  EXPECT_EQ(copies.contest.best(), CopyInstruction::kMovsb);
  EXPECT_EQ(copies.made[indexOf(CopyInstruction::kStreaming)], 0u);
  EXPECT_EQ(copies.made[indexOf(CopyInstruction::kProcessVm)], 0u);
}

// Whichever copy the system interrupts, for ten times as long as the copy takes.
TEST(CopyContest, ADisturbedTrialDoesNotCount) {
  const Costs table{120, 100, 140, 160};
  for (int disturbed = 0; disturbed < 16; ++disturbed) {
    Copies copies;
    for (int i = 0; !copies.contest.isDecided(); ++i) copies.copy(table, i == disturbed ? 10 : 1);
    EXPECT_EQ(copies.contest.best(), CopyInstruction::kStreaming) << disturbed;
  }
}

// Of two buffers in turns, one lies in a cache.
TEST(CopyContest, CopiesThatAreCheapInTurnsFavourNobody) {
  const Costs table{110, 100, 120, 105};
  for (const int cheap : {0, 1}) {
    Copies copies;
    for (int i = 0; !copies.contest.isDecided(); ++i) copies.copy(table, i % 2 == cheap ? 0.5 : 1);
    EXPECT_EQ(copies.contest.best(), CopyInstruction::kStreaming) << cheap;
  }
}

// The same bytes again and again: memcpy finds them in the cache where it left them, and nobody
// does after stores past the caches.
TEST(CopyContest, WhatIsCheapOnlyAfterItselfIsFound) {
  Copies copies;
  CopyInstruction before = CopyInstruction::kStreaming;
  for (int i = 0; !copies.contest.isDecided(); ++i) {
    ASSERT_LT(i, 100);
    const bool isCached = before == CopyInstruction::kMemcpy;
    before = copies.copy({isCached ? 20.0 : 60, 36, 200, 300});
  }
  EXPECT_EQ(copies.contest.best(), CopyInstruction::kMemcpy);
}

TEST(CopyContest, ADearTrialMayBeGivenUpButNotThatOfTheBest) {
  Copies copies;
  const Costs table{100, 90, 300, 110};
  EXPECT_GT(copies.contest.mostCost(), 1e9);  // memcpy: nothing is known
  copies.copy(table);
  copies.copy(table);
  ASSERT_EQ(copies.contest.next(), CopyInstruction::kStreaming);
  EXPECT_DOUBLE_EQ(copies.contest.mostCost(), CopyContest::kTooDear * 100);
  copies.copy(table);
  copies.copy(table);
  ASSERT_EQ(copies.contest.next(), CopyInstruction::kMovsb);
  EXPECT_DOUBLE_EQ(copies.contest.mostCost(), CopyContest::kTooDear * 90);
  copies.copy(table);  // given up: no second one
  ASSERT_EQ(copies.contest.next(), CopyInstruction::kProcessVm);
  copies.copy(table);
  copies.copy(table);
  ASSERT_EQ(copies.contest.next(), CopyInstruction::kMemcpy);  // the second round
  EXPECT_DOUBLE_EQ(copies.contest.mostCost(), CopyContest::kTooDear * 90);
  copies.copy(table);
  copies.copy(table);
  ASSERT_EQ(copies.contest.next(), CopyInstruction::kStreaming);
  EXPECT_GT(copies.contest.mostCost(), 1e9);
}

TEST(CopyContest, PartsOfOneTransferAreOneTrial) {
  CopyContest contest(kAll);
  for (int trial = 0; trial < 2; ++trial)
    for (int part = 0; part < 4; ++part) {
      EXPECT_EQ(contest.next(), CopyInstruction::kMemcpy);
      contest.add(part == 0 ? 40 : 100, kBytes / 4, kBytes);
    }
  EXPECT_EQ(contest.next(), CopyInstruction::kStreaming);
  // The cost of all parts: 85.
  EXPECT_DOUBLE_EQ(contest.mostCost(), CopyContest::kTooDear * 85);
}

TEST(CopyContest, WhileMemoryIsNewTheBestOneCopies) {
  Copies copies;
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(copies.contest.next(), CopyInstruction::kMemcpy);
    copies.contest.passNewMemory();
  }
  copies.copyUntilDecided({100, 90, 50, 110});
  EXPECT_EQ(copies.contest.best(), CopyInstruction::kMovsb);
}

TEST(CopyContest, NewMemoryEndsATrialAndABetterTimeIsAwaited) {
  Copies copies;
  const Costs table{100, 50, 110, 110};
  for (int trial = 0; trial < 2; ++trial) EXPECT_EQ(copies.copy(table), CopyInstruction::kMemcpy);
  EXPECT_EQ(copies.contest.next(), CopyInstruction::kStreaming);
  copies.contest.passNewMemory();
  EXPECT_EQ(copies.copy(table), CopyInstruction::kMemcpy);
  EXPECT_EQ(copies.copy(table), CopyInstruction::kStreaming);
  copies.copyUntilDecided(table);
  EXPECT_EQ(copies.contest.best(), CopyInstruction::kStreaming);
}

// Every second copy goes to new memory, and each of them was to be a trial.
TEST(CopyContest, NoSlowerOneHasMoreTrialsForNewMemory) {
  Copies copies;
  const Costs table{100, 200, 200, 200};
  for (int i = 0; !copies.contest.isDecided(); ++i) {
    ASSERT_LT(i, 1000);
    const CopyInstruction by = copies.contest.next();
    if (by == copies.contest.best()) {
      copies.copy(table);
    } else {
      ++copies.made[indexOf(by)];
      copies.contest.passNewMemory();
    }
  }
  EXPECT_EQ(copies.contest.best(), CopyInstruction::kMemcpy);
  for (size_t i = 1; i < kCopyInstructions; ++i)
    EXPECT_EQ(copies.made[i], CopyContest::kMostTrials);
}

}  // namespace
}  // namespace peerlane::cpu
