// SPDX-License-Identifier: Apache-2.0
//
// NamedImportCache: the cache of imports of one peer's regions that messages named, so that the
// second message from the same memory needs no request to the peer. A region leaves it when its
// owner takes it back; when the cache is full, the least recently used region leaves. External
// synchronization required.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "peerlane/channel/message/host/message_format.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class NamedImportCache {
 public:
  static constexpr size_t kCapacity = 64;

  explicit NamedImportCache(PeerCore& peer) : peer_(peer) {}

  // The region, or null while its owner's answer is awaited. Errors: why it cannot be imported; the
  // next call asks again.
  Result<std::shared_ptr<ImportedRegion>> find(const RegionName& name);

  // Where an import that find() began will be stored.
  std::shared_ptr<ImportSlot> slotOf(const RegionName& name) const {
    return entries_.at({name.allocation, name.generation}).slot;
  }

  // Looks at one entry and drops it when its owner wants it back. The lane must call it now and
  // then.
  void sweep();
  void clear() { entries_.clear(); }

 private:
  using Key = std::pair<uint64_t, uint64_t>;  // allocation, generation
  struct Entry {
    std::shared_ptr<ImportSlot> slot;
    uint64_t used = 0;
  };

  PeerCore& peer_;
  std::map<Key, Entry> entries_;
  uint64_t clock_ = 0;
  Key swept_{};
};

}  // namespace peerlane
