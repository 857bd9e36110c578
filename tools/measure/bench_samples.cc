// SPDX-License-Identifier: Apache-2.0
#include "tools/measure/bench_samples.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace peerlane::bench {
namespace {

constexpr uint64_t kCheckedRounds = 8;
constexpr uint64_t kLeastRounds = 12;

Status runOne(const Contest& contest, Contender who, bool checked, Samples& samples,
              uint64_t& wrong) {
  if (contest.prepare) PEERLANE_RETURN_IF_ERROR(contest.prepare(who, checked));
  PEERLANE_RETURN_IF_ERROR(contest.sample(who, samples));
  if (!checked || !contest.check) return Status::ok();
  PEERLANE_ASSIGN(const uint64_t found, contest.check(who));
  if (who == Contender::kCeiling && found > 0)
    return Status(Code::kInternal, "the raw copy left " + std::to_string(found) +
                                       " wrong bytes: the ceiling is not one");
  wrong += found;
  return Status::ok();
}

}  // namespace

double Samples::mean() const {
  if (values_.empty()) return 0;
  return std::accumulate(values_.begin(), values_.end(), 0.0) / static_cast<double>(values_.size());
}

double Samples::percentile(double rank) const {
  if (values_.empty()) return 0;
  std::vector<double> sorted = values_;
  const double exact = std::ceil(rank / 100 * static_cast<double>(sorted.size()));
  const size_t index = std::clamp<size_t>(static_cast<size_t>(exact), 1, sorted.size()) - 1;
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<ptrdiff_t>(index), sorted.end());
  return sorted[index];
}

Result<Outcome> runContest(const Contest& contest) {
  Outcome outcome;
  Samples unused;
  const uint64_t every = std::max<uint64_t>(1, contest.rounds / kCheckedRounds);
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t turn = 0; turn < contest.warmup + contest.rounds; ++turn) {
    if (contest.limit.count() > 0 && turn >= contest.warmup + kLeastRounds &&
        std::chrono::steady_clock::now() - begin > contest.limit)
      break;
    const bool isWarmup = turn < contest.warmup;
    const bool checked =
        contest.checkAll || (isWarmup ? turn == 0 : (turn - contest.warmup) % every == 0);
    for (const bool second : {false, true}) {
      const bool isOurs = second == (turn % 2 == 1);
      if (!isOurs && !contest.withCeiling) continue;
      Samples& samples = isWarmup ? unused : isOurs ? outcome.ours : outcome.ceiling;
      PEERLANE_RETURN_IF_ERROR(runOne(contest, isOurs ? Contender::kOurs : Contender::kCeiling,
                                      checked, samples, outcome.wrong));
    }
  }
  return outcome;
}

}  // namespace peerlane::bench
