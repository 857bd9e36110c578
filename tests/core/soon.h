// SPDX-License-Identifier: Apache-2.0
//
// For tests: waits for something that no event announces. Any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace peerlane {

// Bounds waits in tests. Far above what anything takes, so that only a test that fails waits for
// it.
inline constexpr std::chrono::seconds kSoon{20};

// True as soon as `condition` holds; false when it does not within `limit`. A stretch in which this
// thread did not run counts as 100 ms at most: when a whole machine stands still for a while, those
// who are waited for stand still, too.
template <typename Condition>
bool soon(const Condition& condition, std::chrono::nanoseconds limit = kSoon) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::nanoseconds kMostAtOnce = std::chrono::milliseconds(100);
  auto last = Clock::now();
  while (!condition()) {
    const auto now = Clock::now();
    limit -= std::min<std::chrono::nanoseconds>(now - last, kMostAtOnce);
    last = now;
    if (limit.count() < 0) return condition();
    std::this_thread::yield();
  }
  return true;
}

}  // namespace peerlane
