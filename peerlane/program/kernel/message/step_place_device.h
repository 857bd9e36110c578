// SPDX-License-Identifier: Apache-2.0
//
// How the device finds the places of a step job: slots of rings from the cursor, and regions that
// an envelope names from the table of known regions. No state.
#pragma once

#if defined(__CUDACC__)

#include "peerlane/program/kernel/message/region_lookup_device.h"
#include "peerlane/program/kernel/message/step_job.h"
#include "peerlane/program/words/word_device.h"

namespace peerlane::kernel {

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

// One warp calls it.
__device__ __forceinline__ LatePlace findPlace(const StepJob& job, uint64_t cursor) {
  const uint64_t envelope = addressOf(job.envelope, cursor);
  auto word = [&](uint32_t at) {
    return device::loadWordRelaxed(reinterpret_cast<const uint64_t*>(envelope + at));
  };
  return findRegion(job.table, {word(job.allocationAt), word(job.generationAt), word(job.offsetAt)},
                    job.abort);
}

}  // namespace peerlane::kernel

#endif  // defined(__CUDACC__)
