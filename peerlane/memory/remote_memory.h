// SPDX-License-Identifier: Apache-2.0
//
// RemoteMemory: one region of a peer as one link reaches it. Made by Link::attach, immutable
// afterwards; it lives until the import cache has no user left and Link::detach took it back.
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

// What an owner tells an importer about one region (through the control connection, descriptor
// beside it).
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
  // GPU memory: what has to be mapped, of which the region is a part from `fdOffset` on.
  uint64_t backingBytes = 0;
  uint64_t identity = 0;  // of that allocation in its process; never used twice there
  // kCudaHandle, kCudaFabric, kCudaPool (cuda_pools.h); in chunks: the sizes (chunk_runs.h).
  std::vector<std::byte> handle;
  // That allocation outlives the regions in it: an importer may keep it mapped for the next one.
  bool isKept = false;
};

// The engine of memory that a GPU reaches.
inline constexpr const char* kCudaEngine = "cuda";

struct RemoteMemory {
  RegionGrant grant;
  std::byte* mapped = nullptr;  // address here when loads and stores reach it (of a GPU, where the
                                // grant's device is one), else null: an agent does
  const char* engine = "";      // who copies: "mapped", "cma", "ring", "socket", "cuda"
  uint64_t linkKey = 0;         // private to the link
  // "owner" or "initiator" where it is not as with the link's other memory, else empty.
  const char* rightsEnforcedBy = "";
  std::shared_ptr<ChunkMap> chunks{};  // where parts may still be missing at `mapped`; else null
  // Where the importer has to be through before the owner may go on: released once the memory is
  // not used any more, and `mapped` ends with it. Else null.
  std::shared_ptr<PinSlot> hold{};
  // Of GPU memory that each GPU of this context finds at an address of its own: where, by GPU. The
  // first one's is `mapped`, too.
  std::vector<std::pair<Device, std::byte*>> perDevice{};

  // Where `device` finds it; null: it does not.
  std::byte* on(Device device) const {
    for (const auto& [known, address] : perDevice)
      if (known == device) return address;
    return perDevice.empty() ? mapped : nullptr;
  }
};

}  // namespace peerlane
