// SPDX-License-Identifier: Apache-2.0
//
// FakeProvider: a memory provider whose memory is arenas that the test makes, and which takes
// memory back whenever the test says so: while it is being acquired, described or exported, and at
// any time after that. It counts what it holds. Thread-safe; it holds no lock while a hook runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/invalidation.h"
#include "peerlane/memory/memory_provider.h"
#include "peerlane/os/shm_segment.h"

namespace peerlane {

class FakeProvider final : public MemoryProvider {
 public:
  using Hook = std::function<void(uint64_t ticket)>;
  // Called with the ticket concerned, at these moments. Set before others use the provider.
  struct Hooks {
    Hook acquiring;
    Hook describing;
    Hook exporting;
    Hook releasing;  // of a HeldMemory that ends
  };

  explicit FakeProvider(std::string name, bool takesBack = true)
      : name_(std::move(name)), takesBack_(takesBack) {}

  // [base, +bytes) is its memory from now on; in `segment`, if given, which outlives it there.
  void own(std::byte* base, size_t bytes, const SharedSegment* segment = nullptr);
  void own(const SharedSegment& segment) { own(segment.data(), segment.bytes(), &segment); }
  // No more; what it holds of it stays held.
  void disown(const std::byte* base);

  std::vector<uint64_t> tickets() const;  // of what it holds
  size_t acquired() const;                // so often

  std::string_view name() const override { return name_; }
  Result<MemoryClaim> acquire(const void* pointer, size_t bytes, uint64_t ticket) override;

  Hooks hooks;

 private:
  struct Arena {
    size_t bytes = 0;
    const SharedSegment* segment = nullptr;
    uint64_t id = 0;
  };
  class Held;

  const std::string name_;
  const bool takesBack_;
  mutable Mutex mutex_;
  std::map<const std::byte*, Arena> arenas_ PEERLANE_GUARDED_BY(mutex_);  // by base
  std::vector<uint64_t> held_ PEERLANE_GUARDED_BY(mutex_);
  size_t acquired_ PEERLANE_GUARDED_BY(mutex_) = 0;
  uint64_t lastId_ PEERLANE_GUARDED_BY(mutex_) = 0;
};

}  // namespace peerlane
