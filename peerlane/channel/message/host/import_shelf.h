// SPDX-License-Identifier: Apache-2.0
//
// ImportShelf: the regions of one peer that messages named, imported once and kept at hand, so that
// the second message from the same memory asks nobody. Regions that the peer takes back leave it;
// so does the least used one when it is full. External synchronization required.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "peerlane/channel/message/host/message_format.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class ImportShelf {
 public:
  static constexpr size_t kCapacity = 64;

  explicit ImportShelf(PeerCore& peer) : peer_(peer) {}

  // The region, or null while the answer of its owner is awaited. Errors: why it cannot be
  // imported; the next call asks again.
  Result<std::shared_ptr<ImportedRegion>> find(const RegionName& name);

  // Where an import that find() began will end up.
  std::shared_ptr<ImportSlot> slotOf(const RegionName& name) const {
    return entries_.at({name.allocation, name.generation}).slot;
  }

  // Looks at one entry and drops it when its owner wants it back. To be called now and then.
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
