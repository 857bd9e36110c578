// SPDX-License-Identifier: Apache-2.0
//
// GpuReport: the rows of a GPU benchmark as a table (ours, the raw limit, their ratio, and the
// goal), as JSON, and the verdict in words. Confined to one thread.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "tools/bench/sides/bench_report.h"

namespace peerlane::bench {

enum class GpuGoal : uint8_t {
  kNone,
  kRatio,      // of the raw limit, at least
  kGbps,       // GB/s, at least
  kGbpsAbove,  // GB/s, more than that
  kMost,       // the row's value, at most
};
struct GpuTarget {
  GpuGoal goal = GpuGoal::kNone;
  double value = 0;
};

struct GpuRow {
  std::string name;
  BenchRow row;
  GpuTarget target;
  // Rows that are no bandwidth: a figure of this unit.
  std::string unit;
  double value = 0;
  Status failure;
  std::string note;

  // Absent: nothing to reach, or the raw limits alone were measured.
  std::optional<bool> met() const;
};

struct GpuReportHead {
  std::vector<std::string> gpus;  // their names
  std::string versions;
  std::string route;  // the link
};

class GpuReport {
 public:
  explicit GpuReport(std::ostream& out) : out_(out) {}

  void begin(const GpuReportHead& head);
  void section(const std::string& title);
  void add(GpuRow row);  // prints it as well
  void say(const std::string& line);
  // Which rows miss, in words.
  void summarize();
  // kCorrupt when a byte was wrong; the first failure of a row.
  Status verdict() const;
  // The file that bench/plot_gpu.py reads. kSystem.
  Status writeJson(const std::string& file, bool append) const;
  const std::vector<GpuRow>& rows() const { return rows_; }

 private:
  std::ostream& out_;
  GpuReportHead head_;
  std::vector<GpuRow> rows_;
};

}  // namespace peerlane::bench
