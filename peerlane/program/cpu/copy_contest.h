// SPDX-License-Identifier: Apache-2.0
//
// CopyContest: which instruction copies the fastest, found out from what the program's own copies
// took, for copies of one kind. Each candidate has trials: transfers that it makes alone. Decides
// and remembers only: it neither copies nor looks at a clock. External synchronization required.
//
// Costs are nanoseconds for each KiB. A candidate counts by its cheapest trial: what disturbs a
// trial makes it dearer. It has two trials one after the other, because the first one begins with
// what another candidate left in the caches: memcpy of the same bytes again and again is three
// times as fast as after stores past the caches.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "peerlane/program/cpu/host_copy.h"

namespace peerlane::cpu {

class CopyContest {
 public:
  static constexpr uint32_t kRounds = 2;
  static constexpr uint32_t kTrialsInRound = 2;
  // Of one candidate, those that were given up and those in new memory among them.
  static constexpr uint32_t kMostTrials = kRounds * kTrialsInRound;
  // After the first round, so many transfers are made by the best one, untimed, before the trials
  // of another. The first round finds the best one mostly, so it comes at once; the second sees
  // that nothing disturbed the first, and may come slowly. Of the first ten copies it takes none.
  static constexpr uint32_t kRests = 3;
  // So much dearer than the best one, a trial is given up before its end, and the candidate for
  // this round.
  static constexpr double kTooDear = 1.3;

  using Candidates = std::array<bool, kCopyInstructions>;
  // memcpy is one, whatever the argument says.
  explicit CopyContest(Candidates candidates);

  bool isDecided() const { return round_ == kRounds; }
  // The cheapest one so far; memcpy before the first trial.
  CopyInstruction best() const;
  // Whose trial is under way. Requires: not decided.
  CopyInstruction next() const { return isMemoryNew_ ? best() : at(candidate_); }
  // A trial at such a cost need not go on; infinite where next() is the best one.
  double mostCost() const;

  // Whether the copy of `bytes`, which is the whole transfer or a part of it, is to be made by the
  // best one without being timed. Else next() has it, and add(), giveUp() or passNewMemory()
  // follow.
  bool rest(uint64_t bytes, uint64_t transferBytes);

  static double costOf(double nanoseconds, uint64_t bytes) {
    return nanoseconds * 1024 / static_cast<double>(bytes);
  }
  // What became of a copy of `bytes` by next(), which is the whole transfer or a part of it. The
  // trial ends with as many bytes as the transfer has, or after an eighth of them where they were
  // too dear.
  void add(double cost, uint64_t bytes, uint64_t transferBytes);
  // The same for a copy that was given up at this cost.
  void giveUp(double cost);
  // The copy touched memory for the first time, which costs more than any instruction. The best one
  // copies until memory is not new any more.
  void passNewMemory();

 private:
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();
  struct Standing {
    bool isCandidate = false;
    uint32_t trials = 0;
    double cost = kUnknown;
  };
  static CopyInstruction at(size_t index) { return static_cast<CopyInstruction>(index); }
  Standing& standingOf(CopyInstruction instruction) {
    return standings_[static_cast<size_t>(instruction)];
  }
  double bestCost() const { return standings_[static_cast<size_t>(best())].cost; }
  void endTrial(double cost);
  bool isDue() const {
    return standings_[candidate_].isCandidate && standings_[candidate_].trials < kMostTrials;
  }
  void advance();

  std::array<Standing, kCopyInstructions> standings_;
  uint32_t round_ = 0;
  size_t candidate_ = 0;
  uint32_t trials_ = 0;  // of that candidate in that round
  bool isMemoryNew_ = false;
  uint32_t rests_ = 0;  // to come
  // Of the trial or the rest under way.
  uint64_t bytes_ = 0;
  double weighted_ = 0;  // the sum of costs, each times its bytes
};

}  // namespace peerlane::cpu
