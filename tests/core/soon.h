// SPDX-License-Identifier: Apache-2.0
//
// For tests: waits for something that no event announces. Any thread.
#pragma once

#include <chrono>
#include <thread>

namespace peerlane {

// Bounds waits in tests. Far above what anything takes, so that only a test that fails waits for
// it.
inline constexpr std::chrono::seconds kSoon{20};

// True as soon as `condition` holds; false when it does not within `limit`.
template <typename Condition>
bool soon(const Condition& condition, std::chrono::nanoseconds limit = kSoon) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return condition();
    std::this_thread::yield();
  }
  return true;
}

}  // namespace peerlane
