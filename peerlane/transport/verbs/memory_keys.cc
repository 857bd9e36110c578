// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/memory_keys.h"

#include <utility>

namespace peerlane {
namespace {

constexpr uint64_t kGigabyte = uint64_t{1} << 30;

int rightsOf(const RegionRecord& region) {
  int rights = 0;
  if (region.memory.writable) rights |= IBV_ACCESS_LOCAL_WRITE;
  if (allows(region.access, Access::kRemoteRead)) rights |= IBV_ACCESS_REMOTE_READ;
  if (allows(region.access, Access::kRemoteWrite))
    rights |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  return rights;
}

}  // namespace

// Holds the keys, because regions may outlive the links.
class MemoryKeys::Registration final : public RegionExport {
 public:
  Registration(std::shared_ptr<MemoryKeys> keys, DeviceMemory memory, const Key& whole)
      : key(whole), keys_(std::move(keys)), memory_(std::move(memory)) {}
  ~Registration() override {
    {
      const WriterLock lock(keys_->mutex_);
      const auto [from, to] = keys_->keys_.equal_range(key.base);
      for (auto at = from; at != to; ++at)
        if (at->second.local == key.local && at->second.bytes == key.bytes) {
          keys_->keys_.erase(at);
          break;
        }
    }
    keys_->ended_.fetch_add(1, std::memory_order_release);
  }

  const Key key;

 private:
  const std::shared_ptr<MemoryKeys> keys_;
  const DeviceMemory memory_;
};

Result<MemoryKeys::Key> MemoryKeys::of(const RegionRecord& region) {
  const auto make = [&]() -> Result<std::shared_ptr<RegionExport>> {
    if (region.memory.device.kind != DeviceKind::kHost)
      return Status(Code::kNotSupported, region.memory.kind.name() + " is not registered with " +
                                             domain_->device().name());
    // The same place in a large page, so that the device may use such pages.
    const uint64_t address = reinterpret_cast<uintptr_t>(region.base) % kGigabyte;
    PEERLANE_ASSIGN(DeviceMemory memory,
                    domain_->add(region.base, region.bytes, rightsOf(region), address));
    const Key key{.base = region.base,
                  .bytes = region.bytes,
                  .address = address,
                  .local = memory.local(),
                  .remote = memory.remote()};
    auto made = std::make_shared<Registration>(shared_from_this(), std::move(memory), key);
    const WriterLock lock(mutex_);
    keys_.emplace(key.base, key);
    return std::shared_ptr<RegionExport>(std::move(made));
  };
  PEERLANE_ASSIGN(const auto made, region.exports.of(this, make));
  return static_cast<const Registration&>(*made).key;
}

std::optional<MemoryKeys::Key> MemoryKeys::find(const std::byte* at, uint64_t bytes) {
  if (auto known = look(at, bytes)) return known;
  const auto region = regions_.holding(at, bytes);
  if (!region || region->isCached.load(std::memory_order_relaxed)) return std::nullopt;
  const Result<Key> made = of(*region);
  return made ? std::optional(*made) : std::nullopt;
}

std::optional<MemoryKeys::Key> MemoryKeys::look(const std::byte* at, uint64_t bytes) {
  const ReaderLock lock(mutex_);
  // Regions overlap seldom: the nearest one that begins before `at` nearly always is the one.
  for (auto next = keys_.upper_bound(at); next != keys_.begin();)
    if (const Key& key = (--next)->second; key.holds(at, bytes)) return key;
  return std::nullopt;
}

}  // namespace peerlane
