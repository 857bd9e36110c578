// SPDX-License-Identifier: Apache-2.0
//
// RemoteMemory: one region of a peer as one link reaches it. Made by Link::attach, immutable
// afterwards; it lives until its entry of the import cache has no user left and Link::detach has
// ended it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "peerlane/memory/device.h"
#include "peerlane/memory/memory_kind.h"
#include "peerlane/os/fd.h"

namespace peerlane {

class ChunkMap;
class PinSlot;

// Everything that an owner tells an importer about one region, by a control message; a descriptor
// travels in addition.
struct RegionGrant {
  uint64_t allocation = 0;
  uint64_t generation = 0;
  uint64_t base =
      0;  // address in the owner's process; meaningful to CMA and to the same process only
  uint64_t bytes = 0;
  uint64_t fdOffset = 0;  // where the region starts in the descriptor
  MemoryKind kind = MemoryKind::kPrivate;
  Access access = Access::kLocal;
  Device device;
  // GPU memory: the bytes that the importer must map; the region begins at `fdOffset` in them.
  uint64_t backingBytes = 0;
  uint64_t identity = 0;  // of that allocation in its process; never used twice there
  // kCudaHandle, kCudaFabric, kCudaPool (cuda_pools.h); in chunks: the sizes (chunk_runs.h).
  std::vector<std::byte> handle;
  // The allocation outlives the regions in it: an importer may keep it mapped for the next region.
  bool isKept = false;
};

// The engine for memory that a GPU reaches.
inline constexpr const char* kCudaEngine = "cuda";

struct RemoteMemory {
  RegionGrant grant;
  std::byte* mapped = nullptr;  // address here when loads and stores reach it (of a GPU, where the
                                // grant's device is one), else null: an agent does
  const char* engine = "";      // copies by "mapped", "cma", "ring", "socket", "cuda"
  uint64_t linkKey = 0;         // private to the link
  // "owner" or "initiator" where that differs from the link's other memory, else empty.
  const char* rightsEnforcedBy = "";
  std::shared_ptr<ChunkMap> chunks{};  // where parts may still be missing at `mapped`; else null
  // Set where the importer must end its use of the memory before the owner may free it: released
  // after the last use, which also ends `mapped`. Else null.
  std::shared_ptr<PinSlot> hold{};
  // For GPU memory that has another address for each GPU of this context: the address for each GPU.
  // The first GPU's is also `mapped`.
  std::vector<std::pair<Device, std::byte*>> perDevice{};

  // The address for `device`; null: the device does not reach it.
  std::byte* on(Device device) const {
    for (const auto& [known, address] : perDevice)
      if (known == device) return address;
    return perDevice.empty() ? mapped : nullptr;
  }
};

}  // namespace peerlane
