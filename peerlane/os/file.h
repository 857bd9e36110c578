// SPDX-License-Identifier: Apache-2.0
//
// Small whole files, read in one go. Not for bulk data. Thread: any.
#pragma once

#include <cstddef>
#include <string>

#include "peerlane/core/status.h"

namespace peerlane {

// Everything in the file (also of /proc and /sys, which report no size). Errors: kInvalidArgument
// when it has more than `maxBytes`; kUnavailable when it does not exist; kPermissionDenied;
// kSystem.
Result<std::string> readWhole(const std::string& path, size_t maxBytes = 64 << 20);

}  // namespace peerlane
