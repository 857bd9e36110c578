// SPDX-License-Identifier: Apache-2.0
//
// MemoryKeys: the registrations of memory with one device and protection domain: a region is
// registered when it is first granted or used, once for all peers, until it is unregistered or its
// provider takes it back. Addresses that travel are counted from the start of the region's
// gigabyte, so peers learn none of this process.
//
// A registration cache of host memory that the program may free without a word: such regions are
// registered while their frees are watched, or on demand, so that the kernel tells the device what
// was freed. Those that are not granted to peers have up to a number of bytes; the least recently
// used one that no transfer holds leaves first.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/region_directory.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/transport/verbs/device/protection_domain.h"
#include "peerlane/transport/verbs/device/registration_path.h"

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
    bool isHost = true;    // the CPU reaches it, too
    bool mayBeCut = true;  // MemoryDescription::mayBeCut
    // Of a GPU for which a flush has to come between bytes and the word that tells of them.
    bool needsFlush = false;
    uint64_t unit = 1;  // as RegistrationPaths::Made
    // Other regions have bytes of it, so it must be asked for again for each request.
    bool isOverlapped = false;

    // A request may use it for these bytes.
    bool fits(const std::byte* at, uint64_t length) const {
      return at >= base && length <= bytes && static_cast<uint64_t>(at - base) <= bytes - length &&
             ((addressOf(at) | length) & (unit - 1)) == 0;
    }
    // And one that is made later, as long as ended() stays the same.
    bool holds(const std::byte* at, uint64_t length) const {
      return !isOverlapped && fits(at, length);
    }
    uint64_t addressOf(const std::byte* at) const {
      return address + static_cast<uint64_t>(at - base);
    }
  };

  // `regions` outlives the calls of find() and ended(). Of the settings it takes those of
  // RegistrationPaths. `gpus`: of the context.
  MemoryKeys(std::shared_ptr<const ProtectionDomain> domain, RegionDirectory& regions,
             const Config& config, const cuda::Gpus& gpus = {})
      : domain_(std::move(domain)),
        writes_(gpus, domain_, config),
        paths_(domain_, config, writes_),
        regions_(regions),
        mostFleeting_(config.ibCacheBytes) {}
  MemoryKeys(const MemoryKeys&) = delete;
  MemoryKeys& operator=(const MemoryKeys&) = delete;

  const RegistrationPaths& paths() const { return paths_; }
  const DeviceWrites& writes() const { return writes_; }

  // For peers. Errors: as RegistrationPaths::add(), kClosed, kNotSupported (not for peers).
  Result<Key> of(const RegionRecord& region);
  // Whether memory of this side is registered, which is tried when it is asked for the first time.
  // Errors: kNotSupported (memory of a device that cannot be). A transfer tells of all others.
  Status takes(const RegionRecord& region);
  // A key for [at, +bytes): of the region by which the transfer holds this memory, so it lives
  // until the transfer has ended. kUnavailable: host memory that is of no region, or of several so
  // that it cannot be told which one the transfer holds, or that is not registered, or not for such
  // a request. Other errors: device memory that cannot be registered.
  Result<Key> find(const std::byte* at, uint64_t bytes);
  // Changes whenever a key has ended, is of memory that was freed, or may be of the wrong one of
  // several regions: one that was found before must be looked up again.
  uint64_t ended() const {
    return ended_.load(std::memory_order_acquire) + regions_.changes() + FreeWatch::told();
  }
  // All registrations end. Requires: no link uses this any more.
  void end();

 private:
  class Registration;
  class Answer;
  // kFleeting: memory that the program may free without a word, for this side.
  enum class Use : uint8_t { kAny, kPeers, kFleeting, kFleetingForPeers };
  using Registered = std::shared_ptr<const Registration>;
  using Region = std::shared_ptr<const RegionRecord>;
  struct Known {
    Key key;
    const RegionRecord* region = nullptr;      // it lives as long as the key
    std::weak_ptr<const RegionRecord> held{};  // the same
    bool isFleeting = false;                   // it may be evicted
    std::atomic<uint64_t> used{0};             // a logical time
  };
  using Keys = std::multimap<const std::byte*, Known>;

  Result<Registered> registered(const RegionRecord& region, Use use);
  Result<RegistrationPaths::Made> addTo(const RegionRecord& region, Use use);
  Result<Registered> findFleeting(const RegionRecord& region);
  Status makeRoom(uint64_t bytes) PEERLANE_REQUIRES(roomMutex_);
  bool evict(const Region& region) PEERLANE_REQUIRES(roomMutex_);
  bool look(const std::byte* at, uint64_t bytes, Key& key);
  void add(const Key& key, const RegionRecord& region, bool isFleeting);
  void forget(const Key& key);
  void noteAnswered(const RegionRecord& region);

  const std::shared_ptr<const ProtectionDomain> domain_;
  DeviceWrites writes_;
  const RegistrationPaths paths_;
  RegionDirectory& regions_;
  const uint64_t mostFleeting_;  // bytes
  std::atomic<uint64_t> ended_{0};
  std::atomic<uint64_t> clock_{0};
  Mutex roomMutex_;  // of the one that makes room and takes it; held before the other
  SharedMutex mutex_;
  Keys keys_ PEERLANE_GUARDED_BY(mutex_);  // by base
  // Regions that have an answer of takes().
  std::vector<std::weak_ptr<const RegionRecord>> answered_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
