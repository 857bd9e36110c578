// SPDX-License-Identifier: Apache-2.0
#include "tools/trial_memory.h"

namespace peerlane {

TrialRegions::~TrialRegions() {
  for (Slot& slot : slots_) drop(slot);
}

Result<Region> TrialRegions::get(TrialMemory memory, uint64_t bytes) {
  Slot& slot = slots_[static_cast<size_t>(memory)];
  if (slot.region && slot.region.bytes() >= bytes) return slot.region;
  drop(slot);
  if (memory == TrialMemory::kShared) {
    PEERLANE_ASSIGN(slot.region, context_.allocate(bytes));
    return slot.region;
  }
  slot.heap = std::make_unique_for_overwrite<std::byte[]>(bytes);
  PEERLANE_ASSIGN(slot.region,
                  context_.registerRegion(slot.heap.get(), bytes, Access::kRemoteReadWrite));
  return slot.region;
}

void TrialRegions::drop(Slot& slot) {
  if (!slot.region) return;
  // Memory that somebody may still write to is not given back to the heap.
  if (!context_.unregister(slot.region, std::chrono::seconds(2)).isOk()) (void)slot.heap.release();
  slot.region = {};
  slot.heap.reset();
}

}  // namespace peerlane
