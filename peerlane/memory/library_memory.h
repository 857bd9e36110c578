// SPDX-License-Identifier: Apache-2.0
//
// Host memory that the library makes for its own use with a peer (slabs, areas, rings, staging),
// registered as any other.
#pragma once

#include <cstdint>
#include <memory>

#include "peerlane/memory/region_table.h"

namespace peerlane {

// `bytes` of host memory that peers can map, read and write. Zeroed; pages are taken when touched.
// Errors: kOutOfMemory, kSystem.
Result<std::shared_ptr<RegionRecord>> makeLibraryMemory(RegionTable& regions, uint64_t bytes);

}  // namespace peerlane
