// SPDX-License-Identifier: Apache-2.0
//
// How many descriptors this process has open, for tests that look for leaks.
#pragma once

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "peerlane/core/status.h"

namespace peerlane {

inline Result<size_t> openFileCount() {
  std::error_code error;
  const std::filesystem::directory_iterator files("/proc/self/fd", error);
  if (error) return Status::system(error.value(), "open /proc/self/fd");
  return static_cast<size_t>(std::distance(begin(files), end(files))) - 1;  // the folder's own
}

}  // namespace peerlane
