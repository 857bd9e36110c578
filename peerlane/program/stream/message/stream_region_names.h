// SPDX-License-Identifier: Apache-2.0
//
// StreamRegionNames: the imported regions of one peer, as kernels find them by name: a table in
// pinned host memory, which a CPU can write whatever the GPU does, and its mirror in the GPU's own
// memory, which kernels fill. One writer at a time; table() from any thread.
#pragma once

#include <atomic>
#include <memory>

#include "peerlane/program/device/step_list.h"
#include "peerlane/program/kernel/message/named_region.h"
#include "peerlane/program/stream/pools/descriptor_arena.h"
#include "peerlane/program/stream/pools/pinned_pool.h"

namespace peerlane::stream {

class StreamRegionNames final : public RegionNames {
 public:
  static constexpr uint32_t kSlots = 256;
  static constexpr size_t kMirrorBytes = kSlots * sizeof(kernel::MirroredRegion);
  // `pool` outlives it. `mirror` is zeroed.
  StreamRegionNames(PinnedPool& pool, const PinnedBlock& block,
                    std::unique_ptr<DescriptorMemory> mirror);
  ~StreamRegionNames() override;
  Status add(uint64_t allocation, uint64_t generation, std::byte* base, uint64_t bytes) override;
  void remove(uint64_t allocation, uint64_t generation) override;
  // The present table, for one launch.
  kernel::RegionTable table() const {
    return {.entries = table_,
            .slots = kSlots,
            .mirror = reinterpret_cast<kernel::MirroredRegion*>(mirror_->data()),
            .version = version_.load(std::memory_order_relaxed)};
  }

 private:
  kernel::NamedRegion* find(uint64_t allocation, uint64_t generation);
  PinnedPool& pool_;
  const PinnedBlock block_;
  const std::unique_ptr<DescriptorMemory> mirror_;
  kernel::NamedRegion* const table_;
  std::atomic<uint64_t> version_{1};
};

}  // namespace peerlane::stream
