// SPDX-License-Identifier: Apache-2.0
//
// How every command says that it failed: one line on standard error and an exit code. Any thread.
#pragma once

#include <string>

#include "peerlane/core/status.h"

namespace peerlane {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

// "Code: sentence" in one line: what a person needs, without the place in our sources.
std::string failureText(const Status& status);
// Prints "peerlane: <failureText>" to standard error. Returns kExitFailure.
int reportFailure(const Status& status);

}  // namespace peerlane
