// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/memory_keys.h"

#include <optional>

#include "peerlane/core/log.h"

namespace peerlane {
namespace {

constexpr uint64_t kGigabyte = uint64_t{1} << 30;

}  // namespace

// Holds the keys, because regions may outlive the links.
class MemoryKeys::Registration final : public RegionExport {
 public:
  Registration(std::shared_ptr<MemoryKeys> keys, DeviceMemory memory, const Key& whole)
      : key(whole), keys_(std::move(keys)), memory_(std::move(memory)) {}
  ~Registration() override { (void)revoke({}); }

  // Nobody uses the key any more. A peer that does none the less is refused by the device.
  Status revoke(std::chrono::nanoseconds /*timeout*/) override {
    const MutexLock lock(mutex_);
    if (!memory_) return Status::ok();
    keys_->forget(key);
    memory_.reset();
    return Status::ok();
  }

  const Key key;

 private:
  const std::shared_ptr<MemoryKeys> keys_;
  Mutex mutex_;
  std::optional<DeviceMemory> memory_ PEERLANE_GUARDED_BY(mutex_);
};

Result<MemoryKeys::Key> MemoryKeys::of(const RegionRecord& region) {
  const auto make = [&]() -> Result<RegionExports::Made> {
    // The same place in a large page, so that the device may use such pages.
    const uint64_t address = reinterpret_cast<uintptr_t>(region.base) % kGigabyte;
    PEERLANE_ASSIGN(RegistrationPaths::Made registered, paths_.add(region, address));
    PEERLANE_LOG_DEBUG("region {} ({} bytes) is registered with {} by {}{}{}", region.allocation,
                       region.bytes, domain_->device().name(), registered.path,
                       registered.refused.empty() ? "" : "; refused: ", registered.refused);
    const Key key{.base = region.base,
                  .bytes = region.bytes,
                  .address = address,
                  .local = registered.memory.local(),
                  .remote = registered.memory.remote(),
                  .isHost = region.memory.device.kind == DeviceKind::kHost};
    auto made =
        std::make_shared<Registration>(shared_from_this(), std::move(registered.memory), key);
    const WriterLock lock(mutex_);
    keys_.emplace(key.base, key);
    return RegionExports::Made(std::move(made));
  };
  PEERLANE_ASSIGN(const RegionExports::Made made, region.exports.of(this, make));
  return static_cast<const Registration&>(*made).key;
}

Result<MemoryKeys::Key> MemoryKeys::find(const std::byte* at, uint64_t bytes) {
  if (Key known; look(at, bytes, known)) return known;
  const auto region = regions_.holding(at, bytes);
  if (!region) return Status(Code::kUnavailable, "memory of no region");
  const bool isHost = region->memory.device.kind == DeviceKind::kHost;
  if (isHost && region->isCached.load(std::memory_order_relaxed))
    return Status(Code::kUnavailable, "memory that the program may free without a word");
  Result<Key> made = of(*region);
  if (made || !isHost) return made;
  return Status(Code::kUnavailable, std::string(made.status().message()));
}

bool MemoryKeys::look(const std::byte* at, uint64_t bytes, Key& key) {
  const ReaderLock lock(mutex_);
  // Regions overlap seldom: the nearest one that begins before `at` nearly always is the one.
  for (auto next = keys_.upper_bound(at); next != keys_.begin();) {
    key = (--next)->second;
    if (key.holds(at, bytes)) return true;
  }
  return false;
}

void MemoryKeys::forget(const Key& key) {
  {
    const WriterLock lock(mutex_);
    const auto [from, to] = keys_.equal_range(key.base);
    for (auto at = from; at != to; ++at)
      if (at->second.local == key.local && at->second.bytes == key.bytes) {
        keys_.erase(at);
        break;
      }
  }
  ended_.fetch_add(1, std::memory_order_release);
}

}  // namespace peerlane
