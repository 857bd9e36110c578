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

class RegionDirectory {
 public:
  virtual ~RegionDirectory() = default;

  // The address of [offset, offset + bytes) of a live region, pinned: its owner cannot get it back
  // before unpin(). Errors: kInvalidArgument (unknown region, stale generation, range outside, each
  // naming the numbers), kPermissionDenied (rights), kClosed (being unregistered). Thread-safe.
  virtual Result<std::byte*> pin(uint64_t allocation, uint64_t generation, uint64_t offset,
                                 uint64_t bytes, Access wanted) = 0;
  virtual void unpin(uint64_t allocation) = 0;

  // The region that holds all of [at, +bytes), for links whose devices must know the memory of this
  // side; null: none does. The caller must know that somebody keeps it registered meanwhile.
  // Thread-safe.
  virtual std::shared_ptr<const RegionRecord> holding(const std::byte* at,
                                                      uint64_t bytes) const = 0;
};

}  // namespace peerlane
