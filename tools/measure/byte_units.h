// SPDX-License-Identifier: Apache-2.0
//
// Units of the sizes in benchmarks.
#pragma once

#include <cstdint>

namespace peerlane::bench {

inline constexpr uint64_t kKiB = 1 << 10;
inline constexpr uint64_t kMiB = 1 << 20;

}  // namespace peerlane::bench
