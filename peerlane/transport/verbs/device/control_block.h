// SPDX-License-Identifier: Apache-2.0
//
// ControlBlock: memory of a verbs link that the peer's device writes, and where answers to requests
// of this side land. Byte map, docs/wire.md:
//
//   0    u64  how many news of this side the peer has taken; written by the peer
//   8    u64  1 while threads of the peer poll, so words need not wake it; written by the peer
//   64   u64  where the old value of an addition, or the byte of a flush, lands; of this side alone
//   128  mail: as many slots as this side has receives for the peer
//
// A mail is a word that the peer has this side write, for devices that do not place writes in
// order: {u64 region, u64 generation, u64 offset, u64 value}, 32 bytes. The news after it says in
// which slot, and how.
//
// ControlBlocks: the blocks of one context, in memory that is registered once. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/transport/verbs/device/protection_domain.h"

namespace peerlane {

namespace control_block {
inline constexpr uint64_t kTaken = 0;
inline constexpr uint64_t kPolls = 8;
inline constexpr uint64_t kLanding = 64;
inline constexpr uint64_t kMail = 128;
inline constexpr uint64_t kMailBytes = 32;
inline constexpr uint32_t kMostMails = 16;
inline constexpr uint64_t kBytes = kMail + kMostMails * kMailBytes;
static_assert(kBytes % 64 == 0, "a block shares no cache line with the next one");
}  // namespace control_block

class ControlBlocks;

class ControlBlock {
 public:
  ControlBlock() = default;
  ~ControlBlock();
  ControlBlock(ControlBlock&& other) noexcept
      : blocks_(std::move(other.blocks_)),
        data_(std::exchange(other.data_, nullptr)),
        local_(other.local_),
        remote_(other.remote_) {}
  ControlBlock& operator=(ControlBlock&&) = delete;

  std::byte* data() const { return data_; }
  // The words that the peer's device writes are 0 again. Requires: no pair is left over which it
  // could write.
  void clear() const;
  // For the device; the same address as here.
  uint64_t address() const { return reinterpret_cast<uintptr_t>(data_); }
  uint32_t local() const { return local_; }
  uint32_t remote() const { return remote_; }

 private:
  friend class ControlBlocks;
  std::shared_ptr<ControlBlocks> blocks_;
  std::byte* data_ = nullptr;
  uint32_t local_ = 0;
  uint32_t remote_ = 0;
};

class ControlBlocks : public std::enable_shared_from_this<ControlBlocks> {
 public:
  explicit ControlBlocks(std::shared_ptr<const ProtectionDomain> domain)
      : domain_(std::move(domain)) {}
  // Zeroed. Errors: kOutOfMemory, kSystem.
  Result<ControlBlock> take();

 private:
  friend class ControlBlock;
  struct Free {
    std::byte* data;
    uint32_t local;
    uint32_t remote;
  };
  struct Unmap {
    void operator()(std::byte* slab) const;
  };
  struct Slab {
    std::unique_ptr<std::byte, Unmap> memory;
    DeviceMemory registered;  // ends first
  };
  Status grow() PEERLANE_REQUIRES(mutex_);

  const std::shared_ptr<const ProtectionDomain> domain_;
  Mutex mutex_;
  std::vector<Slab> slabs_ PEERLANE_GUARDED_BY(mutex_);
  std::vector<Free> free_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
