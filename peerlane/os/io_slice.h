// SPDX-License-Identifier: Apache-2.0
//
// IoSlice: one contiguous piece of memory for the scatter/gather calls of this floor. A plain value
// that has the layout of the system's iovec, so lists of it are handed to the kernel without a
// copy.
#pragma once

#include <cstddef>

namespace peerlane {

// `bytes` bytes at `base`. For another process' memory `base` is an address over there, never read
// here.
struct IoSlice {
  void* base = nullptr;
  size_t bytes = 0;
};

// The kernel takes at most this many slices per call.
inline constexpr size_t kMaxIoSlices = 1024;

}  // namespace peerlane
