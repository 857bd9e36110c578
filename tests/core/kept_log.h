// SPDX-License-Identifier: Apache-2.0
//
// KeptLog: as long as it lives, lines of the log go here, for tests of what is said and how often.
// Thread-safe.
#pragma once

#include <algorithm>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "peerlane/core/log_level.h"

namespace peerlane {

class KeptLog {
 public:
  KeptLog() {
    setLogSink([this](LogLevel level, std::string_view, std::string_view text) {
      if (level > LogLevel::kWarn) return;
      const std::lock_guard<std::mutex> lock(mutex_);
      lines_.emplace_back(text);
    });
  }
  ~KeptLog() { setLogSink({}); }
  KeptLog(const KeptLog&) = delete;
  KeptLog& operator=(const KeptLog&) = delete;

  // Warnings and errors.
  std::vector<std::string> lines() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return lines_;
  }
  size_t countOf(std::string_view part) const {
    const auto all = lines();
    return static_cast<size_t>(std::count_if(all.begin(), all.end(), [&](const std::string& line) {
      return line.find(part) != std::string::npos;
    }));
  }
  // All of them, for the message of a test that fails.
  std::string text() const {
    std::string text;
    for (const std::string& line : lines()) text += line + "\n";
    return text;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

}  // namespace peerlane
