// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/host/named_import_cache.h"

#include <algorithm>

#include "peerlane/channel/message/host/lane_memory.h"

namespace peerlane {

Result<std::shared_ptr<ImportedRegion>> NamedImportCache::find(const RegionName& name) {
  const Key key{name.allocation, name.generation};
  auto found = entries_.find(key);
  if (found == entries_.end()) {
    if (entries_.size() >= kCapacity)
      entries_.erase(std::min_element(
          entries_.begin(), entries_.end(),
          [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
    found = entries_.emplace(key, Entry{std::make_shared<ImportSlot>()}).first;
    found->second.slot->bytes = name.bytes;
  }
  Entry& entry = found->second;
  entry.used = ++clock_;
  entry.slot = ImportSlot::current(entry.slot);
  switch (entry.slot->state.load(std::memory_order_acquire)) {
    case ImportSlot::State::kNone: {
      peer_.imports().request(referenceTo(peer_, name), entry.slot);
      return std::shared_ptr<ImportedRegion>();
    }
    case ImportSlot::State::kPending: return std::shared_ptr<ImportedRegion>();
    case ImportSlot::State::kReady: return entry.slot->region;
    case ImportSlot::State::kFailed: break;
  }
  Status why = entry.slot->failure;
  entries_.erase(found);
  return why;
}

void NamedImportCache::sweep() {
  if (entries_.empty()) return;
  auto at = entries_.upper_bound(swept_);
  if (at == entries_.end()) at = entries_.begin();
  swept_ = at->first;
  const ImportSlot& slot = *at->second.slot;
  if (slot.state.load(std::memory_order_acquire) == ImportSlot::State::kReady &&
      !slot.region->gate.open())
    entries_.erase(at);
}

}  // namespace peerlane
