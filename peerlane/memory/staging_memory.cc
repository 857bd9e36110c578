// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/staging_memory.h"

#include <utility>

#include "peerlane/memory/library_memory.h"
#include "peerlane/os/process.h"

namespace peerlane {

Result<std::shared_ptr<StagingMemory>> StagingMemory::make(std::shared_ptr<void> keepAlive,
                                                           RegionTable& regions, uint64_t bytes) {
  PEERLANE_ASSIGN(auto record, makeLibraryMemory(regions, bytes));
  return std::shared_ptr<StagingMemory>(
      new StagingMemory(std::move(keepAlive), regions, std::move(record)));
}

StagingMemory::StagingMemory(std::shared_ptr<void> keepAlive, RegionTable& regions,
                             std::shared_ptr<RegionRecord> record)
    : keepAlive_(std::move(keepAlive)),
      regions_(regions),
      record_(std::move(record)),
      forks_(forkGeneration()) {}

StagingMemory::~StagingMemory() {
  if (forkGeneration() != forks_) return;  // the pins of a device belong to the parent process
  regions_.remove(record_->allocation);
  record_->pin.release([record = record_] {});
}

}  // namespace peerlane
