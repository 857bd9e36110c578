// SPDX-License-Identifier: Apache-2.0
//
// MemoryKeys: the registrations of memory with one device and protection domain: a region is
// registered when it is first granted or used, once for all peers, until it is unregistered or its
// provider takes it back. Addresses that travel are counted from the start of the region's
// gigabyte, so peers learn none of this process. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/region_directory.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/transport/verbs/protection_domain.h"
#include "peerlane/transport/verbs/registration_path.h"

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
    bool isHost = true;  // the CPU reaches it, too

    bool holds(const std::byte* at, uint64_t length) const {
      return at >= base && length <= bytes && static_cast<uint64_t>(at - base) <= bytes - length;
    }
    uint64_t addressOf(const std::byte* at) const {
      return address + static_cast<uint64_t>(at - base);
    }
  };

  // `regions` outlives the calls of find().
  MemoryKeys(std::shared_ptr<const ProtectionDomain> domain, RegionDirectory& regions)
      : domain_(std::move(domain)), paths_(domain_), regions_(regions) {}
  MemoryKeys(const MemoryKeys&) = delete;
  MemoryKeys& operator=(const MemoryKeys&) = delete;

  const RegistrationPaths& paths() const { return paths_; }

  // Errors: as RegistrationPaths::add(), kClosed.
  Result<Key> of(const RegionRecord& region);
  // A key that holds [at, +bytes): memory of a region, which a transfer keeps until it has ended.
  // kUnavailable: host memory that is of no region, or of one whose memory the program may free
  // without a word. Other errors: device memory that cannot be registered.
  Result<Key> find(const std::byte* at, uint64_t bytes);
  // Changes whenever a key has ended: one that was found before must be looked up again.
  uint64_t ended() const { return ended_.load(std::memory_order_acquire); }

 private:
  class Registration;
  bool look(const std::byte* at, uint64_t bytes, Key& key);
  void forget(const Key& key);

  const std::shared_ptr<const ProtectionDomain> domain_;
  const RegistrationPaths paths_;
  RegionDirectory& regions_;
  std::atomic<uint64_t> ended_{0};
  SharedMutex mutex_;
  std::multimap<const std::byte*, Key> keys_ PEERLANE_GUARDED_BY(mutex_);  // by base
};

}  // namespace peerlane
