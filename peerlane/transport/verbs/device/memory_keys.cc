// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/device/memory_keys.h"

#include <optional>
#include <vector>

#include "peerlane/core/asymmetric_fence.h"
#include "peerlane/core/log.h"

namespace peerlane {
namespace {

// The program may free it without a word (Context::regionOf).
bool isFleeting(const RegionRecord& region) {
  return region.memory.device.kind == DeviceKind::kHost &&
         region.isCached.load(std::memory_order_relaxed);
}

// For memory that goes through slots instead.
Status unavailable(const Status& why) {
  return Status(Code::kUnavailable, std::string(why.message()));
}

}  // namespace

// Holds the keys, because regions may outlive the links.
class MemoryKeys::Registration final : public RegionExport {
 public:
  Registration(std::shared_ptr<MemoryKeys> keys, RegistrationPaths::Made made, const Key& whole,
               Device device)
      : key(whole),
        forPeers(std::move(made.forPeers)),
        keys_(std::move(keys)),
        device_(device),
        memory_(std::move(made.memory)) {}
  ~Registration() override { (void)revoke({}); }

  // Nobody uses the key any more. A peer that does none the less is refused by the device.
  Status revoke(std::chrono::nanoseconds /*timeout*/) override {
    const MutexLock lock(mutex_);
    if (!memory_) return Status::ok();
    keys_->forget(key);
    keys_->writes_.letGo(device_, key.local);
    memory_.reset();
    return Status::ok();
  }

  const Key key;
  const Status forPeers;

 private:
  const std::shared_ptr<MemoryKeys> keys_;
  const Device device_;
  Mutex mutex_;
  std::optional<DeviceMemory> memory_ PEERLANE_GUARDED_BY(mutex_);
};

// Of takes(), kept as long as the region: nothing is tried again before each transfer.
class MemoryKeys::Answer final : public RegionExport {
 public:
  explicit Answer(Status answer) : status(std::move(answer)) {}
  Status revoke(std::chrono::nanoseconds /*timeout*/) override { return Status::ok(); }
  const Status status;
};

Result<MemoryKeys::Key> MemoryKeys::of(const RegionRecord& region) {
  if (isFleeting(region)) {
    FreeWatch::settle();
    if (region.gate.isRevoked()) return region.whyClosed();
    PEERLANE_ASSIGN(const Registered made, registered(region, Use::kFleetingForPeers));
    PEERLANE_RETURN_IF_ERROR(made->forPeers);
    return made->key;
  }
  PEERLANE_ASSIGN(const Registered made, registered(region, Use::kAny));
  if (made->forPeers.isOk()) return made->key;
  const auto pages = registered(region, Use::kPeers);
  if (pages.isOk()) return (*pages)->key;
  return Status(pages.status().code(), std::string(made->forPeers.message()) +
                                           "; pages: " + std::string(pages.status().message()));
}

Result<RegistrationPaths::Made> MemoryKeys::addTo(const RegionRecord& region, Use use) {
  if (use == Use::kFleeting || use == Use::kFleetingForPeers) return paths_.addFleeting(region);
  return use == Use::kPeers ? paths_.addPages(region) : paths_.add(region);
}

Result<MemoryKeys::Registered> MemoryKeys::registered(const RegionRecord& region, Use use) {
  const auto make = [&]() -> Result<RegionExports::Made> {
    PEERLANE_ASSIGN(RegistrationPaths::Made registered, addTo(region, use));
    PEERLANE_LOG_DEBUG("region {} ({} bytes) is registered with {} by {}{}{}", region.allocation,
                       region.bytes, domain_->device().name(), registered.path,
                       registered.refused.empty() ? "" : "; refused: ", registered.refused);
    const Key key{.base = region.base,
                  .bytes = region.bytes,
                  .address = registered.address,
                  .local = registered.memory.local(),
                  .remote = registered.memory.remote(),
                  .isHost = region.memory.device.kind == DeviceKind::kHost,
                  .mayBeCut = region.memory.mayBeCut,
                  .needsFlush = writes_.needsFlush(region.memory.device),
                  .unit = registered.unit};
    writes_.use(region.memory.device, key.local, key.address);
    auto made = std::make_shared<Registration>(shared_from_this(), std::move(registered), key,
                                               region.memory.device);
    add(key, region, use == Use::kFleeting);
    return RegionExports::Made(std::move(made));
  };
  // A region may have two: one for this side, and one for peers.
  const bool isForPeers = use == Use::kPeers || use == Use::kFleetingForPeers;
  const void* const domain = isForPeers ? static_cast<const void*>(&paths_) : this;
  PEERLANE_ASSIGN(const RegionExports::Made made, region.exports.of(domain, make));
  return std::static_pointer_cast<const Registration>(made);
}

Status MemoryKeys::takes(const RegionRecord& region) {
  if (region.memory.device.kind == DeviceKind::kHost) return Status::ok();
  const auto ask = [&]() -> Result<RegionExports::Made> {
    Status answer = registered(region, Use::kAny).status();
    if (!answer.isOk() && answer.code() != Code::kNotSupported) return answer;
    noteAnswered(region);
    return RegionExports::Made(std::make_shared<Answer>(std::move(answer)));
  };
  const auto known = region.exports.of(&answered_, ask);
  return known.isOk() ? std::static_pointer_cast<const Answer>(*known)->status : Status::ok();
}

void MemoryKeys::noteAnswered(const RegionRecord& region) {
  const WriterLock lock(mutex_);
  std::erase_if(answered_, [](const auto& held) { return held.expired(); });
  answered_.push_back(region.weak_from_this());
}

Result<MemoryKeys::Key> MemoryKeys::find(const std::byte* at, uint64_t bytes) {
  if (Key known; look(at, bytes, known)) return known;
  const Region region = regions_.holding(at, bytes);
  if (!region)
    return Status(Code::kUnavailable, "memory of no region, or of several that may be meant");
  const bool isHost = region->memory.device.kind == DeviceKind::kHost;
  if (isHost && !paths_.forUngranted().isOk()) return unavailable(paths_.forUngranted());
  if (isFleeting(*region) && region->frees.wasFreed())
    return Status(Code::kUnavailable, "memory of a mapping in which some was freed");
  const auto made = isFleeting(*region) ? findFleeting(*region) : registered(*region, Use::kAny);
  if (!made.isOk()) return isHost ? unavailable(made.status()) : made.status();
  Key key = (*made)->key;
  key.isOverlapped = region->isOverlapped.load(std::memory_order_relaxed);
  if (key.fits(at, bytes)) return key;
  return Status(Code::kUnavailable, "memory that takes whole pages only");
}

bool MemoryKeys::look(const std::byte* at, uint64_t bytes, Key& key) {
  const ReaderLock lock(mutex_);
  for (auto next = keys_.upper_bound(at); next != keys_.begin();) {
    Known& known = (--next)->second;
    if (!known.key.holds(at, bytes)) continue;
    // Which of several regions is meant, their table knows.
    if (known.region->frees.wasFreed()) return false;
    if (known.region->isOverlapped.load(std::memory_order_relaxed)) return false;
    if (known.key.isHost && !paths_.forUngranted().isOk()) return false;
    if (known.isFleeting)
      known.used.store(clock_.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
    key = known.key;
    return true;
  }
  return false;
}

void MemoryKeys::add(const Key& key, const RegionRecord& region, bool isFleeting) {
  const WriterLock lock(mutex_);
  Known& known = keys_
                     .emplace(std::piecewise_construct, std::forward_as_tuple(key.base),
                              std::forward_as_tuple())
                     ->second;
  known.key = key;
  known.region = &region;
  known.held = region.weak_from_this();
  known.isFleeting = isFleeting;
  known.used.store(clock_.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
}

void MemoryKeys::forget(const Key& key) {
  {
    const WriterLock lock(mutex_);
    const auto [from, to] = keys_.equal_range(key.base);
    for (auto at = from; at != to; ++at)
      if (at->second.key.local == key.local && at->second.key.bytes == key.bytes) {
        keys_.erase(at);
        break;
      }
  }
  ended_.fetch_add(1, std::memory_order_seq_cst);
}

Result<MemoryKeys::Registered> MemoryKeys::findFleeting(const RegionRecord& region) {
  PEERLANE_RETURN_IF_ERROR(paths_.forFleeting());
  const MutexLock lock(roomMutex_);
  bool isKnown = false;
  {
    const ReaderLock reading(mutex_);
    const auto [from, to] = keys_.equal_range(region.base);
    for (auto at = from; at != to; ++at)
      isKnown |= at->second.region == &region && at->second.isFleeting;
  }
  if (!isKnown) PEERLANE_RETURN_IF_ERROR(makeRoom(region.bytes));
  return registered(region, Use::kFleeting);
}

// The least recently used ones go, but for those in use.
Status MemoryKeys::makeRoom(uint64_t bytes) {
  uint64_t taken = 0;
  std::map<uint64_t, Region> byUse;
  {
    const ReaderLock lock(mutex_);
    for (const auto& [base, known] : keys_) {
      Region region = known.isFleeting ? known.held.lock() : nullptr;
      if (!region) continue;
      taken += region->bytes;
      byUse.emplace(known.used.load(std::memory_order_relaxed), std::move(region));
    }
  }
  for (const auto& [used, region] : byUse) {
    if (taken + bytes <= mostFleeting_) break;
    if (bytes <= mostFleeting_ && region->gate.drained() && evict(region)) taken -= region->bytes;
  }
  if (taken + bytes <= mostFleeting_) return Status::ok();
  return Status(Code::kUnavailable, "PEERLANE_IB_CACHE is " + std::to_string(mostFleeting_) +
                                        " bytes, of which " + std::to_string(taken) +
                                        " are in use, and the region has " + std::to_string(bytes));
}

// From now on nobody finds the key, and whoever found it before looks again. A transfer that was in
// the gate before that is seen now, and keeps it.
bool MemoryKeys::evict(const Region& region) {
  std::optional<Key> taken;
  {
    const WriterLock lock(mutex_);
    const auto [from, to] = keys_.equal_range(region->base);
    for (auto at = from; at != to && !taken; ++at)
      if (at->second.region == region.get() && at->second.isFleeting) {
        taken = at->second.key;
        keys_.erase(at);
        break;
      }
  }
  if (!taken) return true;  // it went by itself
  ended_.fetch_add(1, std::memory_order_seq_cst);
  heavyFence();
  if (!region->gate.drained()) {
    add(*taken, *region, /*isFleeting=*/true);
    return false;
  }
  region->exports.drop(this);
  return true;
}

void MemoryKeys::end() {
  std::vector<Region> regions;
  {
    const ReaderLock lock(mutex_);
    for (const auto& [base, known] : keys_)
      if (Region region = known.held.lock()) regions.push_back(std::move(region));
    for (const auto& held : answered_)
      if (Region region = held.lock()) regions.push_back(std::move(region));
  }
  for (const Region& region : regions) {
    region->exports.drop(this);
    region->exports.drop(&paths_);
    region->exports.drop(&answered_);
  }
}

}  // namespace peerlane
