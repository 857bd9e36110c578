// SPDX-License-Identifier: Apache-2.0
//
// How kernels on the software GPU find a region by its name: kernel/region_lookup_device.h by one
// thread.
#pragma once

#include "peerlane/program/kernel/message/named_region.h"
#include "tests/fake/software_gpu/software_kernel.h"

namespace peerlane::kernel {

struct FoundRegion {
  uint64_t address = 0, room = 0;
  bool isFound = false, isFault = false;
};

struct RegionNameAsked {
  uint64_t allocation, generation, offset;
};

inline FoundRegion placeIn(const RegionNameAsked& asked, uint64_t base, uint64_t bytes) {
  if (asked.offset > bytes) return {0, 0, true, true};
  return {base + asked.offset, bytes - asked.offset, true, false};
}

// False: somebody has ended it.
inline bool findRegion(Run& run, const RegionTable& table, const RegionNameAsked& asked,
                       const uint64_t* abort, FoundRegion& found) {
  constexpr uint32_t kMirroredPlaces = 32;
  const uint32_t start = namedRegionSlot(asked.allocation, table.slots);
  const auto slotOf = [&](uint32_t i) { return (start + i) % table.slots; };
  for (uint32_t i = 0; i < kMirroredPlaces && i < table.slots && table.mirror != nullptr; ++i) {
    const MirroredRegion& entry = table.mirror[slotOf(i)];
    if (run.load(&entry.version) != table.version ||
        run.load(&entry.allocation) != asked.allocation ||
        run.load(&entry.generation) != asked.generation)
      continue;
    found = placeIn(asked, run.load(&entry.base), run.load(&entry.bytes));
    return true;
  }
  for (softgpu::PollPause pause; !run.failed(); pause.wait()) {
    for (uint32_t i = 0; i < table.slots; ++i) {
      const NamedRegion& entry = table.entries[slotOf(i)];
      const auto* baseWord = reinterpret_cast<const uint64_t*>(&entry.base);
      const uint64_t base = run.load(baseWord);
      if (base == 0 || run.load(&entry.allocation) != asked.allocation ||
          run.load(&entry.generation) != asked.generation)
        continue;
      const uint64_t bytes = run.load(&entry.bytes);
      if (run.load(baseWord) != base) continue;
      found = placeIn(asked, base, bytes);
      if (table.mirror == nullptr || i >= kMirroredPlaces) return true;
      MirroredRegion& mirrored = table.mirror[slotOf(i)];
      if (!run.reaches(&mirrored, sizeof(mirrored), "a mirror")) return false;
      uint64_t before = run.load(&mirrored.version);
      if (before == table.version || before == MirroredRegion::kBeingWritten ||
          !std::atomic_ref(mirrored.version)
               .compare_exchange_strong(before, MirroredRegion::kBeingWritten))
        return true;
      run.store(&mirrored.allocation, asked.allocation);
      run.store(&mirrored.generation, asked.generation);
      run.store(&mirrored.base, base);
      run.store(&mirrored.bytes, bytes);
      run.store(&mirrored.version, table.version);
      return true;
    }
    if (run.isAborted(abort)) return false;
  }
  return false;
}

}  // namespace peerlane::kernel
