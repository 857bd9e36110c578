// SPDX-License-Identifier: Apache-2.0
//
// Waiting in tests for what nobody tells. Any thread.
#pragma once

#include <chrono>
#include <thread>

namespace peerlane {

// True as soon as `condition` holds; false when it does not within `limit`: a bound, no pace.
template <typename Condition>
bool soon(const Condition& condition, std::chrono::nanoseconds limit = std::chrono::seconds(20)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace peerlane
