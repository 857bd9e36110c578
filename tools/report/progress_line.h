// SPDX-License-Identifier: Apache-2.0
//
// ProgressLine: how far a long transfer is, on standard error: a bar that is redrawn on a terminal,
// plain lines (at most one per second) otherwise. External synchronization required.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace peerlane {

class ProgressLine {
 public:
  // `total` 0: unknown.
  ProgressLine(std::string label, uint64_t total);
  // Takes the bar away.
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(uint64_t bytes);
  std::chrono::duration<double> elapsed() const { return Clock::now() - start_; }

 private:
  using Clock = std::chrono::steady_clock;
  const std::string label_;
  const uint64_t total_;
  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point next_ = start_;
};

// "12.3 MB", "999 bytes": for people, powers of 1000.
std::string readableBytes(uint64_t bytes);

}  // namespace peerlane
