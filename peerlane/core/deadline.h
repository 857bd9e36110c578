// SPDX-License-Identifier: Apache-2.0
//
// Bounds of waits that callers give as a duration, up to the largest one for "without a limit".
#pragma once

#include <chrono>

namespace peerlane {

inline std::chrono::steady_clock::time_point deadlineIn(std::chrono::nanoseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto now = Clock::now();
  return timeout > Clock::time_point::max() - now ? Clock::time_point::max() : now + timeout;
}

// 0 where it has passed; the largest duration where there is none.
inline std::chrono::nanoseconds timeLeft(std::chrono::steady_clock::time_point deadline) {
  using Clock = std::chrono::steady_clock;
  if (deadline == Clock::time_point::max()) return std::chrono::nanoseconds::max();
  // Compared before it is subtracted: the clock's earliest moments are further from now than a
  // duration can say.
  const auto now = Clock::now();
  return deadline <= now ? std::chrono::nanoseconds(0) : std::chrono::nanoseconds(deadline - now);
}

}  // namespace peerlane
