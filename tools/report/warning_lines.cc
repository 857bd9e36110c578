// SPDX-License-Identifier: Apache-2.0
#include "tools/report/warning_lines.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "peerlane/core/log_level.h"
#include "tools/report/failure_report.h"

namespace peerlane {

struct WarningLines::Kept {
  struct Line {
    LogLevel level;
    std::string where;
    std::string text;
    uint64_t count;
  };
  std::mutex mutex;
  std::vector<Line> lines;
};

WarningLines::WarningLines() : kept_(std::make_shared<Kept>()) {
  setLogSink([kept = kept_](LogLevel level, std::string_view where, std::string_view text) {
    const std::lock_guard<std::mutex> lock(kept->mutex);
    const auto known =
        std::find_if(kept->lines.begin(), kept->lines.end(), [&](const Kept::Line& line) {
          return line.level == level && line.where == where && line.text == text;
        });
    if (known != kept->lines.end())
      ++known->count;
    else
      kept->lines.push_back({level, std::string(where), std::string(text), 1});
  });
}

WarningLines::~WarningLines() {
  setLogSink({});
  const std::lock_guard<std::mutex> lock(kept_->mutex);
  for (const Kept::Line& line : kept_->lines)
    tellUser(std::string("peerlane: ") + logLevelName(line.level) + " " + line.where + ": " +
             line.text + (line.count == 1 ? "" : " (" + std::to_string(line.count) + " times)"));
}

}  // namespace peerlane
