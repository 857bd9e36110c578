// SPDX-License-Identifier: Apache-2.0
//
// RegionDirectory: an agent at the owner's side must ask it before it touches memory that a peer
// named. It is the contract between links (which serve peers) and the table of regions (which knows
// rights and lifetimes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "peerlane/core/status.h"
#include "peerlane/memory/device.h"

namespace peerlane {

struct RegionRecord;

struct PinnedMemory {
  std::byte* at = nullptr;
  // This library mapped it, and it stays as long as the pin. Else it is the program's, which may
  // unmap, protect or cut it at any time: an agent touches it by calls that survive that alone
  // (os/mappings/nofault_copy.h).
  bool isOurs = false;
};

class RegionDirectory {
 public:
  virtual ~RegionDirectory() = default;

  // The address of [offset, offset + bytes) of a live region, pinned: its owner cannot get it back
  // before unpin(). Errors: kInvalidArgument (unknown region, stale generation, range outside, each
  // naming the numbers), kPermissionDenied (rights), kClosed (being unregistered). Thread-safe.
  virtual Result<PinnedMemory> pin(uint64_t allocation, uint64_t generation, uint64_t offset,
                                   uint64_t bytes, Access wanted) = 0;
  virtual void unpin(uint64_t allocation) = 0;

  // The region by which a transfer of this side holds [at, +bytes), for links whose devices must
  // know the memory: the only one there, or of several the only one that is in use. Null: there is
  // none, or of host memory it cannot be told which one. Requires: a transfer holds the memory
  // meanwhile, or nothing that happens to the region matters. Thread-safe.
  virtual std::shared_ptr<const RegionRecord> holding(const std::byte* at,
                                                      uint64_t bytes) const = 0;
  // Changes when holding() may answer otherwise than before, because a region was added where there
  // is one: before anybody uses the new one. Thread-safe.
  virtual uint64_t changes() const { return 0; }
};

}  // namespace peerlane
