// SPDX-License-Identifier: Apache-2.0
//
// The whole content of a file. Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane {

// Larger files are refused: a plug-in and the libraries that it needs are a few MiB each.
inline constexpr size_t kLargestContent = size_t{256} << 20;

// Errors: kSystem, kUnavailable (no file on a disk, or too large).
Result<std::vector<std::byte>> contentOfFile(const std::string& path);

}  // namespace peerlane
