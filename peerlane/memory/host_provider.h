// SPDX-License-Identifier: Apache-2.0
//
// HostProvider: heap, mmap, memfd, /dev/shm and hugepages of this process. Knows which of this
// memory another process can map. It takes nothing back: the memory is its program's, and the
// system tells nobody when it is unmapped. Thread-safe.
#pragma once

#include "peerlane/memory/memory_provider.h"

namespace peerlane {

class HostProvider final : public MemoryProvider {
 public:
  std::string_view name() const override { return "host"; }
  // Whatever is mapped and readable.
  Result<MemoryClaim> acquire(const void* pointer, size_t bytes, uint64_t ticket) override;
  // All of the mappings that hold the range. Allocations that malloc keeps in one mapping cannot be
  // told apart.
  Result<std::optional<MemoryExtent>> extentOf(const void* pointer, size_t bytes) override;
  Result<std::unique_ptr<Allocation>> allocate(size_t bytes,
                                               const AllocateOptions& options) override;
};

}  // namespace peerlane
