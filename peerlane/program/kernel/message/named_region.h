// SPDX-License-Identifier: Apache-2.0
//
// The table of regions that messages name: in pinned host memory, where the host enters the regions
// that it has imported, and a mirror of it in the device's memory, where kernels keep the entries
// that they found, because a look at the host's table costs a kernel some microseconds. Plain
// values, no state.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/core/device_code.h"

namespace peerlane::kernel {

// The host may write entries while kernels read them: `base` null, then the others, then `base`
// with release. It must not change an entry that a kernel may still look up.
struct NamedRegion {
  uint64_t allocation = 0;
  uint64_t generation = 0;
  const std::byte* base = nullptr;  // null: nothing here
  uint64_t bytes = 0;
};

// The mirrored contents of the table's entry with the same number. The thread that changes
// `version` from an older value to kBeingWritten writes it, once for each version of the table.
struct MirroredRegion {
  static constexpr uint64_t kBeingWritten = ~uint64_t{0};
  uint64_t version;  // released last
  uint64_t allocation;
  uint64_t generation;
  uint64_t base;
  uint64_t bytes;
};

struct RegionTable {
  const NamedRegion* entries = nullptr;
  uint32_t slots = 0;
  MirroredRegion* mirror = nullptr;  // zeroed device memory, or null: there is none
  // Not 0. It changes when the host removes an entry; the host may do so only while no kernel with
  // the older version is queued.
  uint64_t version = 1;
};

// The slot where the search for an allocation begins; it goes on slot by slot, around the end.
PEERLANE_DEVICE constexpr uint32_t namedRegionSlot(uint64_t allocation, uint32_t tableSlots) {
  uint64_t mixed = allocation * 0x9e3779b97f4a7c15u;
  mixed = (mixed ^ (mixed >> 32)) * 0xd6e8feb86659fd93u;
  return static_cast<uint32_t>((mixed >> 32) % tableSlots);
}

}  // namespace peerlane::kernel
