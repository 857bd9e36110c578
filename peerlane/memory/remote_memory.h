// SPDX-License-Identifier: Apache-2.0
//
// RemoteMemory: one region of a peer as one link reaches it. Made by Link::attach, immutable
// afterwards; it lives until its entry of the import cache has no user left and Link::detach has
// ended it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "peerlane/memory/device.h"
#include "peerlane/memory/memory_kind.h"
#include "peerlane/os/fd.h"

namespace peerlane {

class Agent;
class ChunkMap;
class PinSlot;

// Everything that an owner tells an importer about one region, whatever link reaches it.
struct RegionGrant {
  uint64_t allocation = 0;
  uint64_t generation = 0;
  uint64_t bytes = 0;
  MemoryKind kind{};
  Access access = Access::kLocal;
  Device device;
  // The context whose memory it is, where the context that grants it only has it on loan. Zeros:
  // the same one.
  std::array<uint8_t, 16> owner{};
};

// The part of a grant that one link of the owner makes and the same link of the importer reads
// (keys, handles, addresses, a descriptor): opaque to everybody else.
struct LinkPart {
  std::vector<std::byte> blob;  // at most 4608 bytes
  Fd fd;                        // where a descriptor must travel in addition
};

// The owner's answer to an import of one region over one link.
struct Grant {
  RegionGrant region;
  LinkPart own;
};

// The engine for memory that a GPU reaches.
inline constexpr const char* kCudaEngine = "cuda";

struct RemoteMemory {
  RegionGrant grant;
  std::byte* mapped = nullptr;  // address here when loads and stores reach it (of a GPU, where the
                                // grant's device is one), else null: an agent does
  bool mayBeCut = false;        // behind a file that another process may cut, at `mapped`
  const char* engine = "";      // copies by "mapped", "cma", "ring", "socket", "cuda"
  uint64_t linkKey = 0;         // private to the link
  // The link that attached it, which performs mailbox entries for it.
  Agent* agent = nullptr;
  // That link heeds MailboxEntry::onlyAfterPrevious.
  bool refusesInOrder = false;
  // Words that tell of bytes put here must go over that link: the owner does something between the
  // bytes and the word.
  bool needsItsWords = false;
  Enforcer enforcer = Enforcer::kInitiator;  // of the rights that were granted
  std::shared_ptr<ChunkMap> chunks{};  // where parts may still be missing at `mapped`; else null
  // Set where the importer must end its use of the memory before the owner may free it: released
  // after the last use, which also ends `mapped`. Else null.
  std::shared_ptr<PinSlot> hold{};
  // For GPU memory that has another address for each GPU of this context: the address for each GPU.
  // The first GPU's is also `mapped`.
  std::vector<std::pair<Device, std::byte*>> perDevice{};
  // Of host memory that came by descriptor: that descriptor, and where the region begins in it, for
  // mappings that must outlive the link's. Else null.
  std::shared_ptr<const Fd> file{};
  uint64_t fileOffset = 0;

  // The address for `device`; null: the device does not reach it.
  std::byte* on(Device device) const {
    for (const auto& [known, address] : perDevice)
      if (known == device) return address;
    return perDevice.empty() ? mapped : nullptr;
  }
};

}  // namespace peerlane
