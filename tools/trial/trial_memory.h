// SPDX-License-Identifier: Apache-2.0
//
// TrialRegions: the registered memory of one side of a trial, one region per kind, made when first
// needed and made anew when a larger one is asked for; and access to its content, wherever it lies.
// External synchronization required.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>

#include "peerlane/session/context/context.h"
#include "tools/memory/device_bytes.h"
#include "tools/trial/trial_shape.h"

namespace peerlane {

class TrialRegions {
 public:
  // `device`: where memory of GPUs is taken. Requires: `context` outlives this.
  TrialRegions(Context& context, const Device& device) : context_(context), device_(device) {}
  ~TrialRegions();
  TrialRegions(const TrialRegions&) = delete;
  TrialRegions& operator=(const TrialRegions&) = delete;

  // A region with at least `bytes`. The one given before for this kind may be gone afterwards.
  // kNotSupported for memory of a GPU when this side uses none.
  Result<Region> get(TrialMemory memory, uint64_t bytes);

  // The stream for messages of such memory: one of this side's GPU, none for the host's.
  Result<DeviceStream> streamFor(TrialMemory memory);

  // Calls `fill` with room for the region's first `bytes` bytes, which then hold what it wrote.
  Status write(const Region& region, uint64_t bytes,
               const std::function<void(std::span<std::byte>)>& fill);
  // Calls `look` with the region's first `bytes` bytes.
  Status read(const Region& region, uint64_t bytes,
              const std::function<void(std::span<const std::byte>)>& look);

 private:
  struct Slot {
    Region region;
    std::unique_ptr<std::byte[]> heap;  // the memory of private regions
    RuntimeMemory gpuHeap;              // that of regions of cudaMalloc
  };
  Status make(Slot& slot, TrialMemory memory, uint64_t bytes);
  void drop(Slot& slot);
  std::span<std::byte> mirror(uint64_t bytes);

  Context& context_;
  const Device device_;
  std::array<Slot, 4> slots_;
  RuntimeStream stream_;  // made for the first message
  // GPU memory is filled and looked at through this.
  std::unique_ptr<std::byte[]> mirror_;
  uint64_t mirrorBytes_ = 0;
};

}  // namespace peerlane
