// SPDX-License-Identifier: Apache-2.0
//
// Where the places of a step job are, as the device finds out: slots of rings from the cursor, and
// regions that an envelope names, from the table of those that are known. No state.
#pragma once

#if defined(__CUDACC__)

#include "peerlane/program/copy_device.h"
#include "peerlane/program/kernel/step_job.h"
#include "peerlane/program/word_device.h"

namespace peerlane::kernel {

// What late places are relative to, for all threads of the block.
struct LatePlace {
  uint64_t address;
  uint64_t room;
  bool isFound;
  bool isFault;
};

__device__ __forceinline__ uint64_t addressOf(const StepSpot& spot, uint64_t cursor) {
  if (spot.slots == 0) return spot.at;
  const int64_t number = static_cast<int64_t>(cursor) + spot.slotDelta;
  int64_t slot;
  if ((spot.slots & (spot.slots - 1)) == 0) {
    slot = number & (spot.slots - 1);
  } else {
    slot = number % static_cast<int64_t>(spot.slots);
    if (slot < 0) slot += spot.slots;
  }
  return spot.at + static_cast<uint64_t>(slot) * spot.strideBytes;
}

__device__ __forceinline__ uint64_t* wordOf(const StepItem& item, uint64_t cursor) {
  return reinterpret_cast<uint64_t*>(addressOf(item.to, cursor));
}

__device__ __forceinline__ uint64_t valueOf(const StepItem& item, uint64_t cursor) {
  return (item.byCursor ? cursor : 0) + item.value;
}

// All lanes of a warp look at the table, 32 entries at a time, until one of them is the region or
// somebody ends it.
__device__ __forceinline__ LatePlace findRegion(const StepJob& job, uint64_t cursor) {
  const uint64_t envelope = addressOf(job.envelope, cursor);
  auto word = [&](uint32_t at) {
    return device::loadWordRelaxed(reinterpret_cast<const uint64_t*>(envelope + at));
  };
  const uint64_t allocation = word(job.allocationAt), generation = word(job.generationAt),
                 offset = word(job.offsetAt);
  const uint32_t start = namedRegionSlot(allocation, job.tableSlots);
  const uint32_t lane = device::laneOfWarp();
  for (;;) {
    for (uint32_t first = 0; first < job.tableSlots; first += device::kWarpLanes) {
      const uint32_t probe = first + lane;
      const NamedRegion* entry = job.table + (uint64_t{start} + probe) % job.tableSlots;
      const auto* baseWord = reinterpret_cast<const uint64_t*>(&entry->base);
      uint64_t base = 0, bytes = 0;
      if (probe < job.tableSlots) base = device::loadWordAcquire(baseWord);
      bool isIt = base != 0 && device::loadWordRelaxed(&entry->allocation) == allocation &&
                  device::loadWordRelaxed(&entry->generation) == generation;
      if (isIt) {
        bytes = device::loadWordRelaxed(&entry->bytes);
        // The base of what the slot held before, beside the name of what it is about to hold?
        device::fenceSystem();
        isIt = device::loadWordRelaxed(baseWord) == base;
      }
      const uint32_t found = __ballot_sync(device::kAllLanes, isIt);
      if (found == 0) continue;
      const int winner = __ffs(static_cast<int>(found)) - 1;
      base = __shfl_sync(device::kAllLanes, base, winner);
      bytes = __shfl_sync(device::kAllLanes, bytes, winner);
      if (offset > bytes) return {0, 0, true, true};
      return {base + offset, bytes - offset, true, false};
    }
    if (job.abort != nullptr &&
        __any_sync(device::kAllLanes, lane == 0 && device::loadWordRelaxed(job.abort) != 0))
      return {};
  }
}

}  // namespace peerlane::kernel

#endif  // defined(__CUDACC__)
