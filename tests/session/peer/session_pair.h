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
#include <utility>
#include <vector>

#include "peerlane/peerlane.h"
#include "tests/core/expect_ok.h"
#include "tests/core/soon.h"

namespace peerlane {

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

}  // namespace peerlane
