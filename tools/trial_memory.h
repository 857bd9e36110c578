// SPDX-License-Identifier: Apache-2.0
//
// TrialRegions: the registered memory of one side of a trial, one region per kind, made when first
// needed and made anew when a larger one is asked for. External synchronization required.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "peerlane/session/context.h"
#include "tools/trial_shape.h"

namespace peerlane {

class TrialRegions {
 public:
  // Requires: `context` outlives this.
  explicit TrialRegions(Context& context) : context_(context) {}
  ~TrialRegions();
  TrialRegions(const TrialRegions&) = delete;
  TrialRegions& operator=(const TrialRegions&) = delete;

  // A region with at least `bytes`. The one given before for this kind may be gone afterwards.
  Result<Region> get(TrialMemory memory, uint64_t bytes);

 private:
  struct Slot {
    Region region;
    std::unique_ptr<std::byte[]> heap;  // behind private regions
  };
  void drop(Slot& slot);

  Context& context_;
  std::array<Slot, 2> slots_;
};

inline std::span<std::byte> bytesOf(const Region& region) {
  return {region.data(), region.bytes()};
}

}  // namespace peerlane
