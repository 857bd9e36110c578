// SPDX-License-Identifier: Apache-2.0
//
// RemoteMemory: one region of a peer as one link reaches it. Made by Link::attach, immutable
// afterwards; it lives until the import cache has no user left and Link::detach took it back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/memory/device.h"
#include "peerlane/os/fd.h"

namespace peerlane {

// How the owner's memory can be reached. Numbers are wire format.
enum class MemoryKind : uint8_t {
  kPrivate = 0,  // heap or private mappings: by process_vm_* or staged
  kShared = 1,   // backed by a descriptor that can be mapped elsewhere
};

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
};

struct RemoteMemory {
  RegionGrant grant;
  std::byte* mapped =
      nullptr;              // address here when loads and stores reach it, else null: an agent does
  const char* engine = "";  // who copies: "mapped", "cma", "ring", "socket"
  uint64_t linkKey = 0;     // private to the link
};

}  // namespace peerlane
