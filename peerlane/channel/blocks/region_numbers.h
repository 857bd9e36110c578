// SPDX-License-Identifier: Apache-2.0
//
// RegionNumbers: fills the regions of a list while it is checked, and hands out their numbers. A
// list may name thousands of regions in any order, so a number is found without a walk over them.
// Lives on the stack of one call. External synchronization required.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>

#include "peerlane/channel/blocks/block_list.h"
#include "peerlane/core/status.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class RegionNumbers {
 public:
  RegionNumbers(const PeerCore& peer, BlockList& list) : peer_(peer), list_(list) {}

  // Errors of both: kInvalidArgument (no region, too many).
  Result<TargetId> local(const Region* region);
  // Requires: a local one has a number. The first of them says from where the way is short. Errors
  // as well: kInvalidArgument (a region of another peer), kPermissionDenied.
  Result<TargetId> remote(const RemoteRegion* region);

 private:
  // Two handles may name one region: their blocks are in the same memory.
  using RemoteKey = std::pair<uint64_t, uint64_t>;  // allocation, generation
  struct HashOfKey {
    // The generation is random.
    size_t operator()(const RemoteKey& key) const { return key.first ^ key.second; }
  };

  const PeerCore& peer_;
  BlockList& list_;
  // Of the regions beyond the first few, which are searched: most lists have no others.
  std::unordered_map<const RegionRecord*, TargetId> locals_;
  std::unordered_map<RemoteKey, TargetId, HashOfKey> remotes_;
};

}  // namespace peerlane
