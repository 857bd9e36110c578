// SPDX-License-Identifier: Apache-2.0
//
// HugePages: whether host memory is to be made of huge pages. The configuration and the allocator
// both use it.
#pragma once

#include <cstdint>

namespace peerlane {

enum class HugePages : uint8_t {
  kAuto,  // transparent huge pages where the system grants them
  kOn,    // reserved huge pages (hugetlb) or an error
  kOff,
};

}  // namespace peerlane
