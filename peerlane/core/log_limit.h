// SPDX-License-Identifier: Apache-2.0
//
// LogLimit: keeps a log line that strangers can cause from filling a disk: it allows some at once,
// then one a second, and the next line says how many were left out. External synchronization
// required.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace peerlane {

class LogLimit {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kAtOnce = 32;
  static constexpr std::chrono::seconds kPause{1};

  // Whether the line may be written now.
  bool allows(Clock::time_point now = Clock::now()) {
    const int64_t due = (now - counted_) / kPause;
    if (left_ + due >= kAtOnce) {
      left_ = kAtOnce;
      counted_ = now;
    } else {
      left_ += due;
      counted_ += due * kPause;
    }
    if (left_ == 0) return ++leftOut_, false;
    --left_;
    return true;
  }
  // Text to append to the line that is written: how many lines were left out before it. Empty:
  // none.
  std::string leftOut() {
    const uint64_t count = std::exchange(leftOut_, 0);
    return count == 0 ? std::string()
                      : " (and " + std::to_string(count) + " lines like this were left out)";
  }

 private:
  int64_t left_ = kAtOnce;
  Clock::time_point counted_{};
  uint64_t leftOut_ = 0;
};

}  // namespace peerlane
