// SPDX-License-Identifier: Apache-2.0
//
// SharedLogLimit: a LogLimit for lines that several threads may write: warnings that something in a
// loop can cause, of this program's own or of a peer. Thread-safe.
//
//   if (const auto leftOut = lines_.take()) PEERLANE_LOG_WARN("...{}", ..., *leftOut);
#pragma once

#include <optional>
#include <string>

#include "peerlane/core/log_limit.h"
#include "peerlane/core/mutex.h"

namespace peerlane {

class SharedLogLimit {
 public:
  // Text to append to the line, as LogLimit::leftOut(). None: the line is left out, and counted.
  std::optional<std::string> take(LogLimit::Clock::time_point now = LogLimit::Clock::now()) {
    const MutexLock lock(mutex_);
    if (!limit_.allows(now)) return std::nullopt;
    return limit_.leftOut();
  }

 private:
  Mutex mutex_;
  LogLimit limit_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
