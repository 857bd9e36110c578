// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/cpu/copy_contest.h"

#include <algorithm>

namespace peerlane::cpu {
namespace {

constexpr uint64_t kGivenUpAfter = 8;

}  // namespace

CopyContest::CopyContest(Candidates candidates) {
  candidates[static_cast<size_t>(CopyInstruction::kMemcpy)] = true;
  for (size_t i = 0; i < kCopyInstructions; ++i) standings_[i].isCandidate = candidates[i];
  if (std::count(candidates.begin(), candidates.end(), true) == 1) round_ = kRounds;
}

CopyInstruction CopyContest::best() const {
  return at(static_cast<size_t>(
      std::min_element(standings_.begin(), standings_.end(),
                       [](const Standing& a, const Standing& b) { return a.cost < b.cost; }) -
      standings_.begin()));
}

double CopyContest::mostCost() const {
  return next() == best() ? kUnknown : kTooDear * bestCost();
}

bool CopyContest::rest(uint64_t bytes, uint64_t transferBytes) {
  if (rests_ == 0) return false;
  bytes_ += bytes;
  if (bytes_ < transferBytes) return true;
  bytes_ = 0;
  --rests_;
  return true;
}

void CopyContest::add(double cost, uint64_t bytes, uint64_t transferBytes) {
  bytes_ += bytes;
  weighted_ += cost * static_cast<double>(bytes);
  const double soFar = weighted_ / static_cast<double>(bytes_);
  const bool isTooDear = soFar > mostCost() && bytes_ >= transferBytes / kGivenUpAfter;
  if (bytes_ >= transferBytes || isTooDear) endTrial(soFar);
}

void CopyContest::giveUp(double cost) {
  endTrial(cost);
}

void CopyContest::passNewMemory() {
  bytes_ = 0;
  weighted_ = 0;
  const bool isByBest = next() == best();
  isMemoryNew_ = true;
  // The best one costs nothing, so it may be tried again and again.
  if (isByBest) return;
  ++standings_[candidate_].trials;
  if (!isDue()) advance();
}

void CopyContest::endTrial(double cost) {
  bytes_ = 0;
  weighted_ = 0;
  const CopyInstruction tried = next();
  const bool isTooDear = cost > mostCost();
  Standing& standing = standingOf(tried);
  standing.cost = std::min(standing.cost, cost);
  isMemoryNew_ = false;
  // Else it only showed that memory is not new.
  if (tried != at(candidate_)) return;
  ++standing.trials;
  if (++trials_ == kTrialsInRound || isTooDear || !isDue()) advance();
}

void CopyContest::advance() {
  trials_ = 0;
  do {
    candidate_ = (candidate_ + 1) % kCopyInstructions;
    if (candidate_ == 0 && ++round_ == kRounds) return;
  } while (!isDue());
  rests_ = round_ == 0 || at(candidate_) == best() ? 0 : kRests;
}

}  // namespace peerlane::cpu
