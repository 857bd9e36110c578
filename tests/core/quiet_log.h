// SPDX-License-Identifier: Apache-2.0
//
// QuietLog: as long as it lives, nothing is logged, for tests whose subject is what goes wrong.
#pragma once

#include <string_view>

#include "peerlane/core/log_level.h"

namespace peerlane {

class QuietLog {
 public:
  QuietLog() {
    setLogSink([](LogLevel, std::string_view, std::string_view) {});
  }
  ~QuietLog() { setLogSink({}); }
  QuietLog(const QuietLog&) = delete;
  QuietLog& operator=(const QuietLog&) = delete;
};

}  // namespace peerlane
