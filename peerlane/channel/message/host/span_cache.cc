// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/message/host/span_cache.h"

#include "peerlane/channel/message/host/lane_memory.h"
#include "peerlane/memory/host_provider.h"

namespace peerlane {

namespace {

// Some link reaches memory only when a device has registered it.
bool haveDevices(const std::vector<std::shared_ptr<PeerCore>>& peers) {
  for (const auto& peer : peers)
    for (const Link* link : peer->links().live())
      if (!link->traits().registrations.empty()) return true;
  return false;
}

}  // namespace

SpanCache::SpanCache(std::vector<std::shared_ptr<PeerCore>> peers) : peers_(std::move(peers)) {
  const auto added = holders_.add(std::make_shared<HostProvider>(), MemoryProviders::kHostPriority);
  PEERLANE_CHECK(added.isOk());
}

Result<std::shared_ptr<RegionRecord>> SpanCache::find(const std::byte* address, uint64_t bytes) {
  const MutexLock lock(mutex_);
  auto found = entries_.find({address, bytes});
  // Its memory may have been unmapped since, and other memory be there.
  if (found != entries_.end() && found->second.record->gate.pins() == 0 &&
      found->second.record->exports.hasAny()) {
    retireRegion(found->second.record, peers_);
    entries_.erase(found);
    found = entries_.end();
  }
  if (found == entries_.end()) {
    if (entries_.size() >= kCapacity) evictOne();
    PEERLANE_ASSIGN(auto record, make(address, bytes));
    found = entries_.emplace(Key{address, bytes}, Entry{std::move(record)}).first;
  }
  found->second.used = ++clock_;
  return found->second.record;
}

Result<std::shared_ptr<RegionRecord>> SpanCache::make(const std::byte* address, uint64_t bytes) {
  MemoryDescription description;
  description.kind = MemoryKind::kPrivate;
  description.text = "unregistered memory that was sent";
  std::unique_ptr<AcquiredMemory> held;
  // To find its mappings takes longer than a message, so it is taken for memory of no file: a
  // program that sends a file's memory unregistered must not cut it before the message has ended.
  description.mayBeCut = false;
  if (haveDevices(peers_)) {
    PEERLANE_ASSIGN(held, holders_.acquire(address, bytes));
  }
  return peers_.front()->regions().add(const_cast<std::byte*>(address), bytes, Access::kRemoteRead,
                                       std::move(description), nullptr, std::move(held));
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
