// SPDX-License-Identifier: Apache-2.0
//
// FakeRegions: a RegionDirectory for tests: a few regions, their rights, and how often each is
// pinned. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/memory/remote_memory.h"

namespace peerlane {

class FakeRegions final : public RegionDirectory {
 public:
  // Registers `memory` under the next allocation id. The grant is the honest one.
  RegionGrant add(std::span<std::byte> memory, Access access);
  // Another registration of the same allocation id: grants made before are stale.
  void renew(uint64_t allocation);
  // As if unregistering had begun: what comes now is refused with kClosed.
  void beginClosing(uint64_t allocation) { refuse(allocation, Code::kClosed); }
  // As if it were memory of the program.
  void giveToProgram(uint64_t allocation);
  // Or as if its memory had been taken back: with kRevoked.
  void refuse(uint64_t allocation, Code why);

  // holding() finds it from now on.
  void hold(std::shared_ptr<const RegionRecord> record);

  // Pins that were not let go.
  uint64_t pins() const;
  // Pins ever made.
  uint64_t pinsEver() const;

  Result<PinnedMemory> pin(uint64_t allocation, uint64_t generation, uint64_t offset,
                           uint64_t bytes, Access wanted) override;
  void unpin(uint64_t allocation) override;
  std::shared_ptr<const RegionRecord> holding(const std::byte* at, uint64_t bytes) const override;

 private:
  struct Region {
    std::span<std::byte> memory;
    Access access = Access::kLocal;
    uint64_t generation = 1;
    Code refusal = Code::kOk;
    bool isOurs = true;
    uint64_t pins = 0;
  };

  mutable Mutex mutex_;
  std::map<uint64_t, Region> regions_ PEERLANE_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const RegionRecord>> held_ PEERLANE_GUARDED_BY(mutex_);
  uint64_t next_ PEERLANE_GUARDED_BY(mutex_) = 100;
  uint64_t pinsEver_ PEERLANE_GUARDED_BY(mutex_) = 0;
};

}  // namespace peerlane
