// SPDX-License-Identifier: Apache-2.0
//
// What a range of GPU memory is to devices that are no GPU (NICs): the facts that they choose by,
// and its forms for them: a dma-buf of the range asked for, the plain address for a peer-memory
// module of the kernel, a legacy IPC handle. No state. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/memory/memory_provider.h"
#include "peerlane/os/cuda.h"

namespace peerlane {

// Lives on `gpu`, which outlives it.
struct CudaRange {
  const std::byte* base = nullptr;
  uint64_t bytes = 0;
  const cuda::PrimaryContext* gpu = nullptr;
};

// Errors: the driver's.
Result<MemoryFacts> cudaFacts(const CudaRange& range);

// As HeldMemory::exportAs, for all of `range`. The driver exports whole pages of the host, so a
// dma-buf begins up to a page before the range, and the offset says how far. The driver's copies of
// the allocation are synchronous from then on (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS), as devices that
// reach it by themselves need. Errors: kNotSupported, kSystem (the driver's).
Result<ExportedRange> exportCuda(ExportForm form, const CudaRange& range);

}  // namespace peerlane
