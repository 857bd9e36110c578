// SPDX-License-Identifier: Apache-2.0
//
// Reading what the contexts of a process say about themselves, for `doctor --pid`. Blocks; any
// thread.
#pragma once

#include <string>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane {

// The texts of all contexts of process `pid`. kUnavailable when it has none that can be found (no
// Peerlane, another user's, another network namespace).
Result<std::vector<std::string>> inspectProcess(int pid, const std::string& socketDirectory);

}  // namespace peerlane
