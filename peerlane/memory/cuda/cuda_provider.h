// SPDX-License-Identifier: Apache-2.0
//
// CudaProvider: memory of the GPUs that a context was made for: cudaMalloc memory, VMM allocations,
// pools. Knows how each can reach another process. Managed memory is refused: it migrates, so there
// is no place to give to a peer. It takes nothing back; that memory was freed is found by its
// allocation id. Thread-safe.
#pragma once

#include <memory>

#include "peerlane/memory/memory_provider.h"
#include "peerlane/os/cuda.h"

namespace peerlane {

class CudaProvider final : public MemoryProvider {
 public:
  explicit CudaProvider(cuda::Gpus gpus) : gpus_(std::move(gpus)) {}

  std::string_view name() const override { return "cuda"; }
  Result<MemoryClaim> acquire(const void* pointer, size_t bytes, uint64_t ticket) override;
  Result<std::optional<MemoryExtent>> extentOf(const void* pointer, size_t bytes) override;
  // VMM memory that travels as a descriptor, zeroed; whole granules (2 MiB) are taken.
  Result<std::unique_ptr<Allocation>> allocate(size_t bytes,
                                               const AllocateOptions& options) override;

 private:
  std::shared_ptr<const cuda::PrimaryContext> find(int gpu) const;
  Result<MemoryExtent> tailOf(const void* pointer, size_t bytes) const;
  std::string named() const;

  const cuda::Gpus gpus_;
};

}  // namespace peerlane
