// SPDX-License-Identifier: Apache-2.0
//
// RegistrationCache: a registration cache: registrations that the library made for memory that its
// user did not register, kept for the next use. It registers GPU memory by whole allocations and
// host memory by whole mappings, so that one registration serves all buffers in it. It notices that
// GPU memory was freed, and registers memory that was allocated there anew once more. It never
// waits: its owner unregisters the registrations that leave the cache. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/memory_provider.h"
#include "peerlane/memory/region_table.h"

namespace peerlane {

class RegistrationCache {
 public:
  using Record = std::shared_ptr<RegionRecord>;
  static constexpr size_t kCapacity = 4096;

  RegistrationCache(RegionTable& regions, MemoryProviders& providers, size_t capacity = kCapacity)
      : regions_(regions), providers_(providers), capacity_(capacity) {}

  // A registration that holds [address, +bytes) and grants `access`. `stale` gets the registrations
  // that left the cache: those whose memory was freed, and, of a full cache, the least recently
  // used one. Errors: kInvalidArgument, kPermissionDenied, kNotSupported, as the providers say.
  Result<Record> find(std::byte* address, uint64_t bytes, Access access,
                      std::vector<Record>& stale);

 private:
  struct Entry {
    Record record;
    std::atomic<uint64_t> used{0};  // a logical time; the entry with the least leaves first
  };
  Record look(const std::byte* address, uint64_t bytes, Access access);
  Result<Record> make(std::byte* address, uint64_t bytes, Access access);
  void clear(std::vector<Record>& stale) PEERLANE_REQUIRES(mutex_);

  RegionTable& regions_;
  MemoryProviders& providers_;
  const size_t capacity_;
  std::atomic<uint64_t> clock_{0};
  SharedMutex mutex_;
  std::multimap<const std::byte*, Entry> entries_ PEERLANE_GUARDED_BY(mutex_);  // by base
};

}  // namespace peerlane
