// SPDX-License-Identifier: Apache-2.0
//
// BounceSlots: registered memory of a context through which bytes go that lie in memory which is
// not registered, or that the program may free without a word. Made when first needed. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/transport/verbs/device/protection_domain.h"

namespace peerlane {

class BounceSlots {
 public:
  static constexpr uint32_t kSlotBytes = 64 * 1024;
  static constexpr uint32_t kSlots = 32;
  static constexpr uint32_t kNone = ~uint32_t{0};

  explicit BounceSlots(std::shared_ptr<const ProtectionDomain> domain)
      : domain_(std::move(domain)) {}
  BounceSlots(const BounceSlots&) = delete;
  BounceSlots& operator=(const BounceSlots&) = delete;

  // kTryAgain: all are in use. kOutOfMemory, kSystem: there can be none.
  Result<uint32_t> take();
  // True: somebody was refused one since the last time, and should ask again.
  bool giveBack(uint32_t slot);
  // Of a slot that was taken.
  std::byte* at(uint32_t slot) const { return memory_.get() + uint64_t{slot} * kSlotBytes; }
  uint64_t address(uint32_t slot) const { return reinterpret_cast<uintptr_t>(at(slot)); }
  uint32_t key() const { return registered_.local(); }

 private:
  struct Unmap {
    void operator()(std::byte* memory) const;
  };
  Status make() PEERLANE_REQUIRES(mutex_);

  const std::shared_ptr<const ProtectionDomain> domain_;
  Mutex mutex_;
  std::vector<uint32_t> free_ PEERLANE_GUARDED_BY(mutex_);
  bool hasRefused_ PEERLANE_GUARDED_BY(mutex_) = false;
  // Constant once the first slot was taken.
  std::unique_ptr<std::byte, Unmap> memory_;
  DeviceMemory registered_;
};

}  // namespace peerlane
