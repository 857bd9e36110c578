// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/gpu/bench_gpu_contest.h"

#include <algorithm>

namespace peerlane::bench {
namespace {

constexpr uint64_t kLeastRounds = 9;
constexpr uint64_t kMostRounds = 101;
constexpr uint64_t kBytesOfARow = uint64_t{4} << 30;
constexpr std::chrono::seconds kRowLimit{4};

uint64_t roundsFor(const GpuCase& what) {
  const uint64_t bytes = std::max<uint64_t>(what.messageBytes() * what.window, 1);
  const uint64_t rounds = std::clamp(kBytesOfARow / bytes, kLeastRounds, kMostRounds);
  // Lists cost time between the samples, too.
  return what.blocks > 1000 ? std::min<uint64_t>(rounds, 21) : rounds;
}

class GpuContest {
 public:
  GpuContest(GpuPair& pair, const GpuCase& what) : pair_(pair), copy_(pair.side(), what) {}

  Result<GpuOutcome> run(const GpuContestSettings& settings) {
    GpuOutcome result;
    bool withCeiling = settings.ceiling;
    PEERLANE_RETURN_IF_ERROR(copy_.begin(withCeiling));
    if (withCeiling) {
      const Status able = copy_.postBare();
      if (!able.isOk() && able.code() != Code::kNotSupported) return able;
      if (!able.isOk()) result.noCeiling = able.message();
      withCeiling = able.isOk();
      PEERLANE_RETURN_IF_ERROR(pair_.side().stream().wait());
    }
    Contest contest;
    contest.withCeiling = withCeiling;
    contest.checkAll = settings.checkAll;
    contest.warmup = settings.warmup;
    contest.rounds = settings.rounds > 0 ? settings.rounds : roundsFor(copy_.what());
    if (settings.rounds == 0) contest.limit = kRowLimit;
    contest.prepare = [&](Contender who, bool checked) {
      return skips(settings, who) ? Status::ok() : prepare(checked);
    };
    contest.sample = [&](Contender who, Samples& samples) -> Status {
      if (skips(settings, who)) return Status::ok();
      PEERLANE_ASSIGN(const double elapsed, pair_.sample(copy_, who));
      samples.add(elapsed / static_cast<double>(copy_.what().window));
      (who == Contender::kOurs ? result.posting : result.rawPosting)
          .add(copy_.postingMicroseconds());
      return Status::ok();
    };
    contest.check = [&](Contender who) -> Result<uint64_t> {
      if (skips(settings, who)) return uint64_t{0};
      return check();
    };
    PEERLANE_ASSIGN(result.outcome, runContest(contest));
    return result;
  }

 private:
  static bool skips(const GpuContestSettings& settings, Contender who) {
    return who == Contender::kOurs && !settings.ours;
  }

  // New contents where they come from, and anything else where they go.
  Status prepare(bool checked) {
    PEERLANE_RETURN_IF_ERROR(copy_.shuffle());
    if (!checked) return Status::ok();
    const GpuCase& what = copy_.what();
    seed_ = pair_.nextSeed();
    seedBack_ = pair_.nextSeed();
    const uint64_t bytes = copy_.span();
    if (what.isPut) {
      PEERLANE_RETURN_IF_ERROR(pair_.side().fill(true, bytes, seed_));
      PEERLANE_RETURN_IF_ERROR(pair_.poisonOther(bytes));
    }
    if (!what.isPut || what.bothWays) {
      PEERLANE_RETURN_IF_ERROR(pair_.fillOther(bytes, seedBack_));
      PEERLANE_RETURN_IF_ERROR(pair_.side().poison(bytes));
    }
    return Status::ok();
  }

  Result<uint64_t> check() {
    const GpuCase& what = copy_.what();
    const std::vector<GpuSpan> spans = copy_.spans();
    uint64_t wrong = 0;
    if (what.isPut) {
      PEERLANE_ASSIGN(wrong, pair_.verifyOther(seed_, spans));
    }
    if (!what.isPut || what.bothWays) {
      PEERLANE_ASSIGN(const uint64_t here, pair_.side().countWrong(seedBack_, spans));
      wrong += here;
    }
    return wrong;
  }

  GpuPair& pair_;
  GpuCopy copy_;
  uint64_t seed_ = 0;
  uint64_t seedBack_ = 0;
};

}  // namespace

Result<GpuOutcome> runGpuContest(GpuPair& pair, const GpuCase& what,
                                 const GpuContestSettings& settings) {
  Result<GpuOutcome> result = GpuContest(pair, what).run(settings);
  if (result.isOk() || result.status().code() == Code::kPeerLost) return result;
  if (const Status again = pair.recover(); !again.isOk())
    return Status(Code::kPeerLost,
                  std::string(result.status().message()) + "; and afterwards " + again.toString());
  return result;
}

}  // namespace peerlane::bench
