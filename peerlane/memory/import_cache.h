// SPDX-License-Identifier: Apache-2.0
//
// ImportCache: the imports of one peer's regions, by allocation id and generation, so that a region
// is attached once however often it is named, or once by each of several links, and detached after
// its last user has ended. The code that detached it must call gone(). Thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/core/counted_map.h"
#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/memory/device_pin.h"
#include "peerlane/memory/remote_memory.h"
#include "peerlane/memory/use_gate.h"

namespace peerlane {

// One attached region of a peer. The gate closes when the owner revokes it or the peer is lost.
struct ImportedRegion {
  RemoteMemory memory;
  UseGate gate;
  // Why the gate is closed: the link that reached it failed. Release before the gate closes.
  // Another link may reach the region: it is to be imported anew.
  std::atomic<bool> isLeft{false};
  PinSlot pin;  // of host memory that is mapped here; released when the gate is drained

  // For a caller that found the gate closed.
  Status whyClosed() const {
    const std::string name = "region " + std::to_string(memory.grant.allocation) + " of the peer";
    if (gate.isRevoked())
      return Status(Code::kRevoked, name +
                                        ": its memory was taken back by its provider, or freed, "
                                        "before it was unregistered");
    return Status(Code::kClosed, name +
                                     " has been unregistered, or is about to be, or the peer "
                                     "is gone");
  }

  // True once no work of this side reaches the memory: no transfer is under way, and the pins and
  // holds of devices and of the driver have been released; the first call after the last transfer
  // ended begins that release. Requires: the gate is closed.
  static bool letGo(const std::shared_ptr<ImportedRegion>& region) {
    if (!region->gate.drained()) return false;
    if (!region->lettingGo_.exchange(true))
      region->slot().release([region] { region->gone_.store(true, std::memory_order_release); });
    return region->gone_.load(std::memory_order_acquire);
  }
  // Whether the owner must wait until letGo() returns true, because the memory may not even stay
  // mapped here.
  bool isHeld() const { return memory.hold != nullptr; }
  PinSlot& slot() { return memory.hold ? *memory.hold : pin; }

 private:
  std::atomic<bool> lettingGo_{false};
  std::atomic<bool> gone_{false};  // release by the end of the pin or hold, acquire by letGo()
};

class ImportCache {
 public:
  // `release` gets each region whose last user has ended, on the thread of that user.
  using Release = std::function<void(std::unique_ptr<ImportedRegion>)>;
  explicit ImportCache(Release release) : release_(std::make_shared<Release>(std::move(release))) {}

  // The one that the link `agent` attached; of any link where that is null.
  std::shared_ptr<ImportedRegion> find(uint64_t allocation, uint64_t generation,
                                       const Agent* agent = nullptr) const {
    for (auto& region : all(allocation, generation))
      if (agent == nullptr || region->memory.agent == agent) return std::move(region);
    return nullptr;
  }
  // By every link.
  std::vector<std::shared_ptr<ImportedRegion>> all(uint64_t allocation, uint64_t generation) const {
    std::vector<std::shared_ptr<ImportedRegion>> alive;
    const MutexLock lock(mutex_);
    if (const auto found = regions_.find({allocation, generation}); found != regions_.end())
      found->second.addTo(alive);
    return alive;
  }

  std::shared_ptr<ImportedRegion> insert(RemoteMemory memory) {
    auto* raw = new ImportedRegion;
    raw->memory = std::move(memory);
    std::shared_ptr<ImportedRegion> region(raw, [release = release_](ImportedRegion* last) {
      (*release)(std::unique_ptr<ImportedRegion>(last));
    });
    const MutexLock lock(mutex_);
    Entry& entry = regions_[{raw->memory.grant.allocation, raw->memory.grant.generation}];
    std::erase_if(entry.regions, [](const auto& known) { return known.expired(); });
    entry.regions.push_back(region);
    entry.isHeld = raw->isHeld();
    ++entry.copies;
    return region;
  }

  // The link `agent` failed: its regions are found no more, and nothing that begins from now on
  // uses them.
  void leave(const Agent* agent) {
    std::vector<std::shared_ptr<ImportedRegion>> held;  // may end after the lock
    const MutexLock lock(mutex_);
    for (auto& [key, entry] : regions_) {
      std::erase_if(entry.regions, [&](const auto& known) {
        auto region = known.lock();
        if (!region) return false;
        const bool isLeft = region->memory.agent == agent;
        if (isLeft) {
          region->isLeft.store(true, std::memory_order_release);
          region->gate.close();
        }
        held.push_back(std::move(region));
        return isLeft;
      });
    }
  }

  // To be called after a region that `release` got was detached.
  void gone(const RegionGrant& grant) {
    const MutexLock lock(mutex_);
    const auto found = regions_.find({grant.allocation, grant.generation});
    if (found != regions_.end() && --found->second.copies == 0) regions_.erase(found);
  }
  // The region's last user has ended, and it is not detached yet.
  bool isDetaching(uint64_t allocation, uint64_t generation) const {
    const MutexLock lock(mutex_);
    const auto found = regions_.find({allocation, generation});
    return found != regions_.end() && found->second.isDetaching();
  }
  // The same of any region for which isHeld() was true.
  bool isAnyHeldDetaching() const {
    const MutexLock lock(mutex_);
    return std::any_of(regions_.begin(), regions_.end(), [](const auto& entry) {
      return entry.second.isHeld && entry.second.isDetaching();
    });
  }

  // Every region that still has users.
  std::vector<std::shared_ptr<ImportedRegion>> all() const {
    const MutexLock lock(mutex_);
    std::vector<std::shared_ptr<ImportedRegion>> alive;
    for (const auto& [key, entry] : regions_) entry.addTo(alive);
    return alive;
  }

 private:
  using Key = std::pair<uint64_t, uint64_t>;
  struct Entry {
    std::vector<std::weak_ptr<ImportedRegion>> regions;  // by a link each
    size_t copies = 0;  // imported and not detached yet; more than those where it was left
    bool isHeld = false;

    bool isDetaching() const {
      return copies > static_cast<size_t>(
                          std::count_if(regions.begin(), regions.end(),
                                        [](const auto& region) { return !region.expired(); }));
    }
    void addTo(std::vector<std::shared_ptr<ImportedRegion>>& alive) const {
      for (const auto& known : regions)
        if (auto region = known.lock()) alive.push_back(std::move(region));
    }
  };
  std::shared_ptr<Release> release_;
  mutable Mutex mutex_;
  CountedMap<Key, Entry> regions_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
