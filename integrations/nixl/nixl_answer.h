// SPDX-License-Identifier: Apache-2.0
//
// How the plug-in answers NIXL, which knows numbers only: the number for the agent, and the
// sentence to the log. Any thread.
#pragma once

#include <mutex>
#include <string>

#include "integrations/nixl/nixl_abi.h"
#include "peerlane/core/log_level.h"
#include "peerlane/core/log_limit.h"
#include "peerlane/core/status.h"

namespace peerlane::nixl {

// The number that NIXL documents for such an error. kTryAgain and kTimeout have none of their own.
abi::Answer answerFor(Code code);

// Writes "peerlane nixl: <agent>: <text>" to standard error if PEERLANE_LOG shows `level` (warn if
// it is not set).
void say(LogLevel level, const std::string& agent, const std::string& text);

// The same for what a loop or a peer can cause thousands of times: some lines at once, then one a
// second, which says how many were left out. Thread-safe.
class LimitedLines {
 public:
  void say(LogLevel level, const std::string& agent, const std::string& text);

 private:
  std::mutex mutex_;
  LogLimit limit_;
};

// OK: kSuccess. Otherwise logs `what` and the error, and answers the number of its code.
abi::Answer refuse(const std::string& agent, const std::string& what, const Status& status);

}  // namespace peerlane::nixl
