// SPDX-License-Identifier: Apache-2.0
//
// The size of the largest allocation by operator new in this program since it was set to 0. Always
// 0 under a sanitizer, which has operators of its own. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>

namespace peerlane {

// Relaxed: it orders nothing.
extern std::atomic<size_t> largest_allocation;

}  // namespace peerlane
