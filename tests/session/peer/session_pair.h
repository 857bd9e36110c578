// SPDX-License-Identifier: Apache-2.0
//
// What the session tests share: contexts with short settings, and results unwrapped. External
// synchronization required.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "peerlane/peerlane.h"
#include "tests/core/expect_ok.h"

namespace peerlane {

inline constexpr std::chrono::seconds kSoon{20};  // a bound, no pace

inline std::unique_ptr<Context> makeContext(const Config& config = {},
                                            std::vector<std::string> listen = {},
                                            std::string secret = "") {
  return MUST(Context::create({config, std::move(listen), std::move(secret)}));
}

inline Config withLinks(std::vector<std::string> links) {
  Config config;
  config.links = std::move(links);
  return config;
}

// True as soon as `condition` holds; false when it does not for long.
template <typename Condition>
bool eventually(const Condition& condition) {
  const auto limit = std::chrono::steady_clock::now() + kSoon;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace peerlane
