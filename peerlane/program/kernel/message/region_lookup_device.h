// SPDX-License-Identifier: Apache-2.0
//
// How a warp finds a region by its name: in the mirror in the device's own memory, else in the
// host's table; it looks until the region is there or the abort word is not 0. All lanes must call,
// with the same arguments.
#pragma once

#if defined(__CUDACC__)

#include "peerlane/program/kernel/message/named_region.h"
#include "peerlane/program/words/copy_device.h"
#include "peerlane/program/words/word_device.h"

namespace peerlane::kernel {

// The result of a lookup: the address of a late place and the bytes from there to the end of its
// region.
struct LatePlace {
  uint64_t address;
  uint64_t room;
  bool isFound;
  bool isFault;
};

struct RegionQuery {
  uint64_t allocation, generation, offset;
};

__device__ __forceinline__ LatePlace placeIn(const RegionQuery& query, uint64_t base,
                                             uint64_t bytes, uint32_t winner) {
  base = __shfl_sync(device::kAllLanes, base, static_cast<int>(winner));
  bytes = __shfl_sync(device::kAllLanes, bytes, static_cast<int>(winner));
  if (query.offset > bytes) return {0, 0, true, true};
  return {base + query.offset, bytes - query.offset, true, false};
}

// Looks only at the first 32 places of the search.
__device__ __forceinline__ bool isMirrored(const RegionTable& table, const RegionQuery& query,
                                           uint32_t start, LatePlace& place) {
  if (table.mirror == nullptr) return false;
  const uint32_t lane = device::laneOfWarp();
  const MirroredRegion& entry = table.mirror[(start + lane) % table.slots];
  const bool isIt = lane < table.slots &&
                    device::loadWordAcquire(&entry.version) == table.version &&
                    device::loadWordRelaxed(&entry.allocation) == query.allocation &&
                    device::loadWordRelaxed(&entry.generation) == query.generation;
  const uint32_t found = __ballot_sync(device::kAllLanes, isIt);
  if (found == 0) return false;
  const uint64_t base = isIt ? device::loadWordRelaxed(&entry.base) : 0;
  const uint64_t bytes = isIt ? device::loadWordRelaxed(&entry.bytes) : 0;
  place = placeIn(query, base, bytes, static_cast<uint32_t>(__ffs(static_cast<int>(found))) - 1);
  return true;
}

// One lane calls it.
__device__ __forceinline__ void mirrorRegion(const RegionTable& table, const RegionQuery& query,
                                             uint32_t slot, uint64_t base, uint64_t bytes) {
  MirroredRegion& entry = table.mirror[slot];
  const uint64_t before = device::loadWordRelaxed(&entry.version);
  if (before == table.version || before == MirroredRegion::kBeingWritten) return;
  if (atomicCAS(reinterpret_cast<unsigned long long*>(&entry.version), before,
                MirroredRegion::kBeingWritten) != before)
    return;
  entry.allocation = query.allocation;
  entry.generation = query.generation;
  entry.base = base;
  entry.bytes = bytes;
  device::storeWordRelease(&entry.version, table.version);
}

__device__ __forceinline__ LatePlace findRegion(const RegionTable& table, const RegionQuery& query,
                                                const uint64_t* abort) {
  const uint32_t start = namedRegionSlot(query.allocation, table.slots);
  const uint32_t lane = device::laneOfWarp();
  LatePlace place{};
  if (isMirrored(table, query, start, place)) return place;
  for (;;) {
    // 32 entries at a time.
    for (uint32_t first = 0; first < table.slots; first += device::kWarpLanes) {
      const uint32_t probe = first + lane;
      const auto slot = static_cast<uint32_t>((uint64_t{start} + probe) % table.slots);
      const NamedRegion* entry = table.entries + slot;
      const auto* baseWord = reinterpret_cast<const uint64_t*>(&entry->base);
      uint64_t base = 0, bytes = 0;
      if (probe < table.slots) base = device::loadWordAcquire(baseWord);
      bool isIt = base != 0 && device::loadWordRelaxed(&entry->allocation) == query.allocation &&
                  device::loadWordRelaxed(&entry->generation) == query.generation;
      if (isIt) {
        bytes = device::loadWordRelaxed(&entry->bytes);
        // Guards against the base of the slot's former region with the name of the new one, which
        // the host is about to enter.
        device::fenceSystem();
        isIt = device::loadWordRelaxed(baseWord) == base;
      }
      const uint32_t found = __ballot_sync(device::kAllLanes, isIt);
      if (found == 0) continue;
      const uint32_t winner = static_cast<uint32_t>(__ffs(static_cast<int>(found))) - 1;
      if (lane == winner && first == 0 && table.mirror != nullptr)
        mirrorRegion(table, query, slot, base, bytes);
      __syncwarp();
      return placeIn(query, base, bytes, winner);
    }
    if (abort != nullptr &&
        __any_sync(device::kAllLanes, lane == 0 && device::loadWordRelaxed(abort) != 0))
      return {};
  }
}

}  // namespace peerlane::kernel

#endif  // defined(__CUDACC__)
