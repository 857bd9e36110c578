// SPDX-License-Identifier: Apache-2.0
//
// RegistrationCache: a registration cache: registrations that the library made for memory that its
// user did not register, kept for the next use. It registers GPU memory by whole allocations and
// host memory by whole mappings, so that one registration serves all buffers in it; host memory
// that peers reach by the range that was asked for. It notices that GPU memory was freed, or host
// memory that is watched (RegionFrees), or any memory taken back by its provider, and registers
// memory that was allocated there anew once more. It never waits: its owner unregisters the
// registrations that leave the cache. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/memory_providers.h"
#include "peerlane/memory/region_table.h"

namespace peerlane {

class RegistrationCache {
 public:
  using Record = std::shared_ptr<RegionRecord>;
  static constexpr size_t kCapacity = 4096;

  // Called for each registration before anybody finds it; its error ends the registration.
  using Watch = std::function<Status(const Record&)>;

  RegistrationCache(RegionTable& regions, MemoryProviders& providers, Watch watch,
                    size_t capacity = kCapacity)
      : regions_(regions), providers_(providers), watch_(std::move(watch)), capacity_(capacity) {}

  // A registration that holds [address, +bytes) and grants `access`. `stale` gets the registrations
  // that left the cache: those whose memory was freed, and, of a full cache, the least recently
  // used ones. A large cache is looked through for them after a 64th of it was added, so that each
  // registration does not take a walk. Errors: kInvalidArgument, kPermissionDenied, kNotSupported,
  // as the providers say.
  Result<Record> find(std::byte* address, uint64_t bytes, Access access,
                      std::vector<Record>& stale);

 private:
  struct Entry {
    Record record;
    std::atomic<uint64_t> used{0};  // a logical time; the entry with the least leaves first
  };
  // By its provider: memory for a registration.
  struct Held {
    std::byte* base = nullptr;
    uint64_t bytes = 0;
    MemoryDescription memory;
    std::unique_ptr<AcquiredMemory> acquired;
  };
  Result<Held> hold(std::byte* address, uint64_t bytes, Access access);
  static Status watchFrees(const RegionRecord& record);
  Record look(const std::byte* address, uint64_t bytes, Access access);
  Result<Record> make(std::byte* address, uint64_t bytes, Access access,
                      std::vector<Record>& stale);
  // By base.
  using Entries = std::multimap<const std::byte*, Entry>;
  void clear(std::vector<Record>& stale) PEERLANE_REQUIRES(mutex_);
  std::vector<Entries::iterator> clearGone(std::vector<Record>& stale) PEERLANE_REQUIRES(mutex_);

  RegionTable& regions_;
  MemoryProviders& providers_;
  const Watch watch_;
  const size_t capacity_;
  std::atomic<uint64_t> clock_{0};
  SharedMutex mutex_;
  Entries entries_ PEERLANE_GUARDED_BY(mutex_);
  size_t addedSince_ PEERLANE_GUARDED_BY(mutex_) = 0;  // the last walk over the entries
};

}  // namespace peerlane
