// SPDX-License-Identifier: Apache-2.0
//
// BenchReport: the rows of a benchmark as a table (the columns of nccl-tests, then p50, p99, the
// raw limit and the part of it that was reached), as JSON, and the verdict. Confined to one thread.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "peerlane/core/status.h"
#include "tools/measure/bench_samples.h"

namespace peerlane::bench {

struct BenchRow {
  std::string operation;
  std::string memory;
  std::string link;
  std::string engine;
  uint64_t bytes = 0;  // of one iteration
  uint64_t blocks = 1;
  // Latency rows compare times, the others bytes per second.
  bool isLatency = false;
  // How many bytes went before a cancel is undefined: such a row has no bandwidth.
  bool movesAll = true;
  std::string ceilingBy;  // what the raw limit was measured with; empty: none
  Outcome outcome;
  // Further numbers, by the name they have in JSON.
  std::map<std::string, double> extras;

  double p50() const { return outcome.ours.percentile(50); }
  double p99() const { return outcome.ours.percentile(99); }
  // From the median. Units: GB/s, 10^9 bytes.
  double gbps() const;
  // The raw limit in the row's own unit: microseconds or GB/s.
  std::optional<double> ceiling() const;
  // 1 at the limit, below it when slower. Of medians.
  std::optional<double> ratio() const;
  // The same of the fastest twentieth of both: samples that a busy machine did not disturb. For
  // finding out, not for the verdict.
  std::optional<double> ratioOfFastest() const;
};

class BenchReport {
 public:
  // A ratio above this says that the ceiling was measured wrongly.
  static constexpr double kMaxRatio = 1.05;

  explicit BenchReport(std::ostream& out) : out_(out) {}

  void printHeader(const std::string& title, bool isLatency);
  void add(BenchRow row);  // prints it as well
  // Ends the table. kCorrupt when a byte was wrong, kInternal when a ratio is above kMaxRatio.
  Status verdict() const;
  // The file can be written: asked before anything is measured. kInvalidArgument.
  static Status checkJsonFile(const std::string& file);
  // {"machine": {...}, "rows": [...]}; `append` keeps the rows that the file has. kSystem.
  Status writeJson(const std::string& file, bool append) const;
  std::string json() const;
  const std::vector<BenchRow>& rows() const { return rows_; }

 private:
  std::ostream& out_;
  std::vector<BenchRow> rows_;
};

// Runnable processes of the last minute; above 0.5 the numbers are worth little.
double loadOfThisMachine();

}  // namespace peerlane::bench
