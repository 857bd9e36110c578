// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/host/span_cache.h"

#include "peerlane/channel/message/host/lane_memory.h"

namespace peerlane {

Result<std::shared_ptr<RegionRecord>> SpanCache::find(const std::byte* address, uint64_t bytes) {
  const MutexLock lock(mutex_);
  auto found = entries_.find({address, bytes});
  if (found == entries_.end()) {
    if (entries_.size() >= kCapacity) evictOne();
    MemoryDescription description;
    description.kind = MemoryKind::kPrivate;
    description.text = "unregistered memory that was sent";
    PEERLANE_ASSIGN(auto record, peers_.front()->regions().add(const_cast<std::byte*>(address),
                                                               bytes, Access::kRemoteRead,
                                                               std::move(description), nullptr));
    found = entries_.emplace(Key{address, bytes}, Entry{std::move(record)}).first;
  }
  found->second.used = ++clock_;
  return found->second.record;
}

// The least used one that no message needs. If all are needed the cache grows for a while.
void SpanCache::evictOne() {
  auto oldest = entries_.end();
  for (auto at = entries_.begin(); at != entries_.end(); ++at)
    if (at->second.record->gate.pins() == 0 &&
        (oldest == entries_.end() || at->second.used < oldest->second.used))
      oldest = at;
  if (oldest == entries_.end()) return;
  retireRegion(oldest->second.record, peers_);
  entries_.erase(oldest);
}

void SpanCache::clear() {
  const MutexLock lock(mutex_);
  for (auto& [key, entry] : entries_) retireRegion(entry.record, peers_);
  entries_.clear();
}

}  // namespace peerlane
