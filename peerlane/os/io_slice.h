// SPDX-License-Identifier: Apache-2.0
//
// IoSlice: one contiguous piece of memory for the scatter/gather calls of this floor. A plain value
// that has the layout of the system's iovec, so lists of it are handed to the kernel without a
// copy.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace peerlane {

// `bytes` bytes at `base`. For another process' memory `base` is an address over there, never read
// here.
struct IoSlice {
  void* base = nullptr;
  size_t bytes = 0;
};

// `bytes` more of `slices` are done: returns how many of them are done whole, and cuts that off the
// front of the next one.
inline size_t takeBytes(std::span<IoSlice> slices, size_t bytes) {
  size_t done = 0;
  while (bytes != 0) {
    IoSlice& slice = slices[done];
    const size_t part = std::min(bytes, slice.bytes);
    slice = {static_cast<std::byte*>(slice.base) + part, slice.bytes - part};
    if (slice.bytes != 0) break;
    bytes -= part;
    ++done;
  }
  return done;
}

// The kernel takes at most this many slices per call.
inline constexpr size_t kMaxIoSlices = 1024;

}  // namespace peerlane
