// SPDX-License-Identifier: Apache-2.0
//
// HugePages: the wish for large pages behind host memory, as the configuration and the allocator
// say it.
#pragma once

#include <cstdint>

namespace peerlane {

enum class HugePages : uint8_t {
  kAuto,  // transparent huge pages where the system grants them
  kOn,    // reserved huge pages (hugetlb) or an error
  kOff,
};

}  // namespace peerlane
