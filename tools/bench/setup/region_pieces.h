// SPDX-License-Identifier: Apache-2.0
//
// RegionPieces: private memory, each piece of which is a region by itself, as the tensors of a
// model are. Confined to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "peerlane/peerlane.h"
#include "tools/bench/sides/bench_memory.h"

namespace peerlane::bench {

class RegionPieces {
 public:
  static constexpr uint64_t kStride = 8192;  // between pieces
  static constexpr uint64_t kBytes = 8000;   // of each

  // Every page is there.
  static Result<std::unique_ptr<RegionPieces>> create(uint64_t count);

  uint64_t count() const { return count_; }
  std::byte* data() const { return memory_->data(); }
  uint64_t allBytes() const { return count_ * kStride; }
  const std::vector<Region>& regions() const { return regions_; }

  // All of them, one call each.
  Status registerIn(Context& context);
  // In one call, or in one call each.
  Status unregisterAll(Context& context);
  Status unregisterEach(Context& context);

 private:
  RegionPieces(uint64_t count, std::unique_ptr<PrivateMemory> memory)
      : count_(count), memory_(std::move(memory)) {}

  const uint64_t count_;
  const std::unique_ptr<PrivateMemory> memory_;
  std::vector<Region> regions_;
};

}  // namespace peerlane::bench
