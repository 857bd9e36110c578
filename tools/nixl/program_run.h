// SPDX-License-Identifier: Apache-2.0
//
// Programs of others that a command starts and reads: a Python, the dynamic loader. Any thread.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane {

struct ProgramEnd {
  std::string out{};
  std::string errors{};
  // "ended with exit code 3", "was killed by signal 11"; empty: exit code 0.
  std::string failure{};

  // The last line on standard error that holds anything; for a message.
  std::string lastError() const;
};

// Finds `words[0]` as a shell does, gives it nothing to read, and waits until it ended. Of each
// stream the first MiB is taken; the program cannot write more. Errors: kUnavailable (cannot be
// started), kTimeout (was killed), kSystem.
Result<ProgramEnd> runProgram(std::vector<std::string> words, std::chrono::seconds timeout);

}  // namespace peerlane
