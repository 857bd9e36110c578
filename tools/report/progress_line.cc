// SPDX-License-Identifier: Apache-2.0
#include "tools/report/progress_line.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "tools/report/failure_report.h"

namespace peerlane {

ProgressLine::ProgressLine(std::string label, uint64_t total)
    : label_(std::move(label)), total_(total), terminal_(::isatty(STDERR_FILENO) == 1) {
  // A transfer of less than a second needs no lines in a log.
  if (!terminal_) next_ += std::chrono::seconds(1);
}

ProgressLine::~ProgressLine() {
  if (terminal_) std::fputs("\r\033[K", stderr);
}

void ProgressLine::update(uint64_t bytes) {
  const auto now = Clock::now();
  if (now < next_) return;
  next_ = now + (terminal_ ? std::chrono::milliseconds(100) : std::chrono::milliseconds(1000));
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double share =
      total_ == 0 ? 0 : std::min(1.0, static_cast<double>(bytes) / static_cast<double>(total_));
  const std::string speed =
      seconds > 0
          ? readableBytes(static_cast<uint64_t>(static_cast<double>(bytes) / seconds)) + "/s"
          : "";
  if (!terminal_) {
    tellUser(fmt::format("{}: {} of {}, {}", label_, readableBytes(bytes), readableBytes(total_),
                         speed));
    return;
  }
  constexpr size_t kWidth = 30;
  const auto full = static_cast<size_t>(share * kWidth);
  const std::string bar =
      fmt::format("\r\033[K{} [{}{}] {:3.0f}% {} {}", label_, std::string(full, '#'),
                  std::string(kWidth - full, '.'), share * 100, readableBytes(bytes), speed);
  std::fputs(bar.c_str(), stderr);
  std::fflush(stderr);
}

std::string readableBytes(uint64_t bytes) {
  if (bytes < 1000) return fmt::format("{} bytes", bytes);
  constexpr std::array<const char*, 6> kUnits{"kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes) / 1000;
  size_t unit = 0;
  while (value >= 999.95 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace peerlane
