// SPDX-License-Identifier: Apache-2.0
//
// ProtectionDomain: a device's domain of keys and pairs: a key works for every pair of its domain
// and for no other. DeviceMemory: one registration in it. Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "peerlane/core/status.h"
#include "peerlane/os/verbs/verbs_device.h"

namespace peerlane {

class ProtectionDomain;

// Memory that is registered as long as this lives. Movable.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept
      : domain_(std::move(other.domain_)),
        memory_(std::exchange(other.memory_, nullptr)),
        locked_(other.locked_) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(domain_, other.domain_);
    std::swap(memory_, other.memory_);
    std::swap(locked_, other.locked_);
    return *this;
  }
  ~DeviceMemory();

  // The keys, for requests of this side and of peers.
  uint32_t local() const { return memory_->lkey; }
  uint32_t remote() const { return memory_->rkey; }

 private:
  friend class ProtectionDomain;
  DeviceMemory(std::shared_ptr<const ProtectionDomain> domain, ibv_mr* memory, uint64_t locked)
      : domain_(std::move(domain)), memory_(memory), locked_(locked) {}
  std::shared_ptr<const ProtectionDomain> domain_;
  ibv_mr* memory_ = nullptr;
  uint64_t locked_ = 0;  // bytes; none of memory on demand
};

class ProtectionDomain : public std::enable_shared_from_this<ProtectionDomain> {
 public:
  static Result<std::shared_ptr<const ProtectionDomain>> create(
      std::shared_ptr<const verbs::VerbsDevice> device);
  ~ProtectionDomain();
  ProtectionDomain(const ProtectionDomain&) = delete;
  ProtectionDomain& operator=(const ProtectionDomain&) = delete;

  const verbs::VerbsDevice& device() const { return *device_; }
  ibv_pd* handle() const { return domain_; }

  // Registers memory that stays the caller's. `rights`: IBV_ACCESS_*, with IBV_ACCESS_ON_DEMAND it
  // is not locked. `address`: of its first byte
  // for the device; it has the same place in its page as `base`. Errors: kOutOfMemory naming the
  // limit of locked memory, kSystem.
  Result<DeviceMemory> add(std::byte* base, uint64_t bytes, int rights, uint64_t address) const;
  // The same of a dma-buf from `offset` on. The descriptor may be closed afterwards.
  Result<DeviceMemory> addDmaBuf(int descriptor, uint64_t offset, uint64_t bytes, int rights,
                                 uint64_t address) const;

 private:
  friend class DeviceMemory;
  Result<DeviceMemory> take(ibv_mr* memory, uint64_t bytes, int rights) const;
  ProtectionDomain(std::shared_ptr<const verbs::VerbsDevice> device, ibv_pd* domain)
      : device_(std::move(device)), domain_(domain) {}

  const std::shared_ptr<const verbs::VerbsDevice> device_;
  ibv_pd* const domain_;
  mutable std::atomic<uint64_t> locked_{0};  // bytes
};

}  // namespace peerlane
