// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/message/stream_region_names.h"

#include <cstring>
#include <string>
#include <utility>

namespace peerlane::stream {

StreamRegionNames::StreamRegionNames(PinnedPool& pool, const PinnedBlock& block,
                                     std::unique_ptr<DescriptorMemory> mirror)
    : pool_(pool),
      block_(block),
      mirror_(std::move(mirror)),
      table_(reinterpret_cast<kernel::NamedRegion*>(block.data)) {
  std::memset(block.data, 0, kSlots * sizeof(kernel::NamedRegion));
}

StreamRegionNames::~StreamRegionNames() {
  pool_.giveBack(block_);
}

kernel::NamedRegion* StreamRegionNames::find(uint64_t allocation, uint64_t generation) {
  const uint32_t first = kernel::namedRegionSlot(allocation, kSlots);
  for (uint32_t i = 0; i < kSlots; ++i) {
    kernel::NamedRegion& entry = table_[(first + i) % kSlots];
    if (entry.base != nullptr && entry.allocation == allocation && entry.generation == generation)
      return &entry;
  }
  return nullptr;
}

Status StreamRegionNames::add(uint64_t allocation, uint64_t generation, std::byte* base,
                              uint64_t bytes) {
  if (find(allocation, generation) != nullptr) return Status::ok();
  const uint32_t first = kernel::namedRegionSlot(allocation, kSlots);
  for (uint32_t i = 0; i < kSlots; ++i) {
    kernel::NamedRegion& entry = table_[(first + i) % kSlots];
    if (entry.base != nullptr) continue;
    // A kernel may read the entry at any time: the host writes the base last, with release, and
    // kernels read it first.
    std::atomic_ref(entry.allocation).store(allocation, std::memory_order_relaxed);
    std::atomic_ref(entry.generation).store(generation, std::memory_order_relaxed);
    std::atomic_ref(entry.bytes).store(bytes, std::memory_order_relaxed);
    std::atomic_ref(entry.base).store(base, std::memory_order_release);
    return Status::ok();
  }
  return Status(Code::kUnavailable, "messages name more than " + std::to_string(kSlots) +
                                        " regions of one peer; unregister some, or register "
                                        "larger ones");
}

void StreamRegionNames::remove(uint64_t allocation, uint64_t generation) {
  kernel::NamedRegion* const entry = find(allocation, generation);
  if (entry == nullptr) return;
  std::atomic_ref(entry->base).store(nullptr, std::memory_order_release);
  version_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace peerlane::stream
