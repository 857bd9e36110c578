// SPDX-License-Identifier: Apache-2.0
//
// MemoryProviders: the registry of one context's memory providers. It finds the one owner of a
// range, names ranges that straddle owners, applies the rule for memory that may be taken back, and
// lets a provider's invalidation reach the holders of the memory. It keeps no answer: the next call
// asks anew. Set-up path. Thread-safe; no lock is held while a provider or a holder is called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/memory_provider.h"
#include "peerlane/memory/ticket.h"

namespace peerlane {

// A range that a provider holds for this context. Its end releases it.
class AcquiredMemory {
 public:
  ~AcquiredMemory() = default;
  AcquiredMemory(const AcquiredMemory&) = delete;
  AcquiredMemory& operator=(const AcquiredMemory&) = delete;

  uint64_t ticket() const { return ticket_->number(); }
  const MemoryProvider& provider() const { return *provider_; }
  HeldMemory& held() const { return *held_; }
  // From now on invalidations of the ticket call `drain`. Errors: kRevoked (one came before).
  Status onInvalidation(InvalidationTicket::Drain drain) {
    return ticket_->onInvalidation(std::move(drain));
  }

 private:
  friend class MemoryProviders;
  AcquiredMemory(std::shared_ptr<MemoryProvider> provider,
                 std::unique_ptr<InvalidationTicket> ticket, std::unique_ptr<HeldMemory> held)
      : provider_(std::move(provider)), held_(std::move(held)), ticket_(std::move(ticket)) {}

  const std::shared_ptr<MemoryProvider> provider_;  // outlives what it holds
  const std::unique_ptr<HeldMemory> held_;
  const std::unique_ptr<InvalidationTicket> ticket_;  // goes first
};

// Asks for [offset, +bytes) of `held`, which has `all` bytes. Errors: kInvalidArgument (outside),
// kNotSupported (its provider may take it back, and the importer would not let go; no common form).
Result<ExportedRange> exportRange(HeldMemory& held, uint64_t all, const Importer& importer,
                                  uint64_t offset, uint64_t bytes);

class MemoryProviders {
 public:
  // The higher one is asked first; of equals, the one that was added first.
  static constexpr int kHostPriority = 0;  // takes whatever is mapped: nobody comes after it
  static constexpr int kCudaPriority = 100;
  static constexpr int kUserPriority = 200;

  // Returns the number by which it is removed. Errors: kInvalidArgument (null).
  Result<uint64_t> add(std::shared_ptr<MemoryProvider> provider, int priority = kUserPriority);
  // It is not asked any more by calls that begin from now on. Ranges that it holds stay. Errors:
  // kInvalidArgument (no such number).
  Result<std::shared_ptr<MemoryProvider>> remove(uint64_t id);
  bool has(const MemoryProvider& provider) const;

  // The provider that owns all of the range holds it. Errors: kInvalidArgument (none owns it; or it
  // straddles owners: both pieces are named), kRevoked (taken back at once), the provider's.
  Result<std::unique_ptr<AcquiredMemory>> acquire(const void* pointer, size_t bytes);
  // The extent that the first provider with an answer returns.
  Result<std::optional<MemoryExtent>> extentOf(const void* pointer, size_t bytes);
  // The first provider that allocates on the device does. It stays, as long as the memory does,
  // also when it is removed.
  Result<std::unique_ptr<Allocation>> allocate(size_t bytes, const AllocateOptions& options);

 private:
  struct Entry {
    uint64_t id = 0;
    int priority = 0;
    std::shared_ptr<MemoryProvider> provider;
  };
  // A moment's providers, in the order in which they are asked.
  using Order = std::shared_ptr<const std::vector<Entry>>;
  Order order() const;
  Status straddles(const Entry& owner, MemoryExtent piece, const void* pointer, size_t bytes) const;

  mutable Mutex mutex_;
  Order order_ PEERLANE_GUARDED_BY(mutex_) = std::make_shared<std::vector<Entry>>();
  uint64_t next_ PEERLANE_GUARDED_BY(mutex_) = 1;
};

}  // namespace peerlane
