// SPDX-License-Identifier: Apache-2.0
//
// ImportCache: the regions of one peer that are imported here, by allocation id and generation, so
// that a region is attached once however often it is named, and detached when its last user is
// gone. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "peerlane/memory/device_pin.h"
#include "peerlane/memory/remote_memory.h"
#include "peerlane/memory/use_gate.h"

namespace peerlane {

// One attached region of a peer. The gate closes when the owner revokes it or the peer is lost.
struct ImportedRegion {
  RemoteMemory memory;
  UseGate gate;
  std::atomic<bool> freed{false};  // why the gate is closed: its owner has lost it
  PinSlot pin;  // of host memory that is mapped here; released when the gate is drained
};

class ImportCache {
 public:
  // `release` gets each region whose last user is gone, on the thread of that user.
  using Release = std::function<void(std::unique_ptr<ImportedRegion>)>;
  explicit ImportCache(Release release) : release_(std::make_shared<Release>(std::move(release))) {}

  std::shared_ptr<ImportedRegion> find(uint64_t allocation, uint64_t generation) const {
    const std::lock_guard lock(mutex_);
    auto found = regions_.find({allocation, generation});
    return found == regions_.end() ? nullptr : found->second.lock();
  }

  std::shared_ptr<ImportedRegion> insert(RemoteMemory memory) {
    auto* raw = new ImportedRegion;
    raw->memory = std::move(memory);
    std::shared_ptr<ImportedRegion> region(raw, [release = release_](ImportedRegion* last) {
      (*release)(std::unique_ptr<ImportedRegion>(last));
    });
    const std::lock_guard lock(mutex_);
    std::erase_if(regions_, [](const auto& entry) { return entry.second.expired(); });
    regions_[{raw->memory.grant.allocation, raw->memory.grant.generation}] = region;
    return region;
  }

  // Every region that still has users.
  std::vector<std::shared_ptr<ImportedRegion>> all() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<ImportedRegion>> alive;
    for (const auto& [key, weak] : regions_)
      if (auto region = weak.lock()) alive.push_back(std::move(region));
    return alive;
  }

 private:
  using Key = std::pair<uint64_t, uint64_t>;
  std::shared_ptr<Release> release_;
  mutable std::mutex mutex_;
  std::map<Key, std::weak_ptr<ImportedRegion>> regions_;
};

}  // namespace peerlane
