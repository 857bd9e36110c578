// SPDX-License-Identifier: Apache-2.0
//
// Samples: what was measured for one row, in microseconds per iteration; and the loop that measures
// two contenders in turns, so that whatever disturbs the machine meets both. External
// synchronization required.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane::bench {

class Samples {
 public:
  void add(double microseconds) { values_.push_back(microseconds); }
  bool empty() const { return values_.empty(); }
  size_t size() const { return values_.size(); }
  // 0 when empty.
  double mean() const;
  // `rank` in percent; the nearest value at or above it. 0 when empty.
  double percentile(double rank) const;
  double median() const { return percentile(50); }

 private:
  std::vector<double> values_;
};

enum class Contender { kOurs, kCeiling };

// One row's procedure. Only `sample` looks at the clock.
struct Contest {
  // Before every sample: new bytes in the source; when `checked`, another pattern in the
  // destination.
  std::function<Status(Contender, bool checked)> prepare;
  // Runs once and adds to the samples.
  std::function<Status(Contender, Samples&)> sample;
  // After a checked sample: returns wrong bytes.
  std::function<Result<uint64_t>(Contender)> check;
  bool withCeiling = false;
  bool checkAll = false;
  uint64_t warmup = 0;
  uint64_t rounds = 0;
  // No new round begins after this time, once a dozen were run; 0: no limit.
  std::chrono::seconds limit{0};
};

struct Outcome {
  Samples ours;
  Samples ceiling;
  uint64_t wrong = 0;
};

// Warm-up rounds are run and, the first of them, checked, but not kept. The contender that goes
// first changes with every round. Eight rounds, evenly spread, are checked; all with checkAll.
Result<Outcome> runContest(const Contest& contest);

}  // namespace peerlane::bench
