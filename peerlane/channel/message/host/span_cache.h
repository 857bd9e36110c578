// SPDX-License-Identifier: Apache-2.0
//
// SpanCache: a registration cache of one communicator: registrations of memory that the user sends
// without having registered it, kept for the next message. Each is registered as private memory, of
// whatever kind it is: peers reach it by its address in this process and never map it, so a
// registration that outlives the memory does no harm. A device that registered the pages
// for itself would read those of before: where one did, the next message makes a new registration.
// Peers of the communicator can read a span while it is in the cache. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/memory_providers.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class SpanCache {
 public:
  static constexpr size_t kCapacity = 512;

  // All peers that may import; they share one context.
  explicit SpanCache(std::vector<std::shared_ptr<PeerCore>> peers);
  ~SpanCache() { clear(); }

  // The registration of exactly this span, readable by peers.
  Result<std::shared_ptr<RegionRecord>> find(const std::byte* address, uint64_t bytes);
  // Takes all of them back.
  void clear();

 private:
  using Key = std::pair<const std::byte*, uint64_t>;
  struct Entry {
    std::shared_ptr<RegionRecord> record;
    uint64_t used = 0;
  };
  void evictOne() PEERLANE_REQUIRES(mutex_);
  Result<std::shared_ptr<RegionRecord>> make(const std::byte* address, uint64_t bytes);

  const std::vector<std::shared_ptr<PeerCore>> peers_;
  MemoryProviders holders_;  // the host's alone
  Mutex mutex_;
  std::map<Key, Entry> entries_ PEERLANE_GUARDED_BY(mutex_);
  uint64_t clock_ PEERLANE_GUARDED_BY(mutex_) = 0;
};

}  // namespace peerlane
