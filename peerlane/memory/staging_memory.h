// SPDX-License-Identifier: Apache-2.0
//
// StagingMemory: a bounce buffer: host memory through which bytes pass where no link reaches their
// memory directly. Registered, so that a peer may import it, and reachable for devices once pinned.
// Shared; it ends with its last owner.
#pragma once

#include <cstdint>
#include <memory>

#include "peerlane/core/status.h"
#include "peerlane/memory/region_table.h"

namespace peerlane {

class StagingMemory {
 public:
  // `keepAlive` keeps the object alive that `regions` belongs to. Errors: kOutOfMemory, kSystem.
  static Result<std::shared_ptr<StagingMemory>> make(std::shared_ptr<void> keepAlive,
                                                     RegionTable& regions, uint64_t bytes);
  // Requires: no device and no transfer uses it, and no peer imports it.
  ~StagingMemory();
  StagingMemory(const StagingMemory&) = delete;
  StagingMemory& operator=(const StagingMemory&) = delete;

  std::byte* data() const { return record_->base; }
  uint64_t bytes() const { return record_->bytes; }
  const std::shared_ptr<RegionRecord>& record() const { return record_; }

 private:
  StagingMemory(std::shared_ptr<void> keepAlive, RegionTable& regions,
                std::shared_ptr<RegionRecord> record);

  const std::shared_ptr<void> keepAlive_;
  RegionTable& regions_;
  const std::shared_ptr<RegionRecord> record_;
  const uint64_t forks_;
};

}  // namespace peerlane
