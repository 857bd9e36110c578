// SPDX-License-Identifier: Apache-2.0
//
// MemoryKeys: the registrations of memory with one device and protection domain: a region is
// registered when it is first granted or used, once for all peers, and until it is unregistered.
// Addresses that travel are counted from the start of the region's gigabyte, so peers learn none of
// this process. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/region_directory.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/transport/verbs/protection_domain.h"

namespace peerlane {

class MemoryKeys : public std::enable_shared_from_this<MemoryKeys> {
 public:
  // One registration.
  struct Key {
    std::byte* base = nullptr;
    uint64_t bytes = 0;
    uint64_t address = 0;  // of the first byte, for the device
    uint32_t local = 0;
    uint32_t remote = 0;

    bool holds(const std::byte* at, uint64_t length) const {
      return at >= base && length <= bytes && static_cast<uint64_t>(at - base) <= bytes - length;
    }
    uint64_t addressOf(const std::byte* at) const {
      return address + static_cast<uint64_t>(at - base);
    }
  };

  // `regions` outlives the calls of find().
  MemoryKeys(std::shared_ptr<const ProtectionDomain> domain, RegionDirectory& regions)
      : domain_(std::move(domain)), regions_(regions) {}
  MemoryKeys(const MemoryKeys&) = delete;
  MemoryKeys& operator=(const MemoryKeys&) = delete;

  // Errors: kOutOfMemory naming the limit of locked memory, kNotSupported (memory that the device
  // cannot reach), kSystem.
  Result<Key> of(const RegionRecord& region);
  // A key that holds [at, +bytes): memory of a region, which a transfer keeps until it has ended.
  // None where the memory belongs to no region, or to one whose memory the program may free without
  // a word.
  std::optional<Key> find(const std::byte* at, uint64_t bytes);
  // Changes whenever a key has ended: one that was found before must be looked up again.
  uint64_t ended() const { return ended_.load(std::memory_order_acquire); }

 private:
  class Registration;
  std::optional<Key> look(const std::byte* at, uint64_t bytes);

  const std::shared_ptr<const ProtectionDomain> domain_;
  RegionDirectory& regions_;
  std::atomic<uint64_t> ended_{0};
  SharedMutex mutex_;
  std::multimap<const std::byte*, Key> keys_ PEERLANE_GUARDED_BY(mutex_);  // by base
};

}  // namespace peerlane
