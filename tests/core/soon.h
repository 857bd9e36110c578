// SPDX-License-Identifier: Apache-2.0
//
// For tests: waits for something that no event announces. Any thread.
#pragma once

#include <chrono>
#include <thread>

namespace peerlane {

// True as soon as `condition` holds; false when it does not within `limit`, which
// only a test that fails waits for.
template <typename Condition>
bool soon(const Condition& condition, std::chrono::nanoseconds limit = std::chrono::seconds(20)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return condition();
    std::this_thread::yield();
  }
  return true;
}

}  // namespace peerlane
