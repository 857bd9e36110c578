// SPDX-License-Identifier: Apache-2.0
//
// CudaMapping: GPU memory mapped into this process: made here, or imported from a peer by a
// descriptor, a fabric handle or a legacy IPC handle. Not a region. Immutable. Requires: no work
// that touches it is queued when it is destroyed. Destruction is safe while a GPU waits: calls that
// could block then are left to the reclaimer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/memory/chunk_map.h"
#include "peerlane/memory/vmm_handle.h"
#include "peerlane/os/cuda.h"

namespace peerlane {

class CudaMapping {
 public:
  // New memory on `gpu`, zeroed, made for export as a descriptor; whole granules (2 MiB).
  static Result<std::shared_ptr<CudaMapping>> create(size_t bytes, const cuda::PrimaryContext& gpu);
  // Maps the VMM allocation that `handle` stands for. All of `gpus` may read and write it.
  static Result<std::shared_ptr<CudaMapping>> importAllocation(
      const VmmHandle& handle, size_t bytes,
      std::span<const std::shared_ptr<const cuda::PrimaryContext>> gpus);
  // Opens a legacy IPC handle for `gpu`. The same handle opened twice is one mapping: the driver
  // allows no other. Not possible in the process that made the handle. kCorrupt where the
  // allocation is smaller than `bytes`, the size that its owner told.
  static Result<std::shared_ptr<CudaMapping>> importHandle(std::span<const std::byte> handle,
                                                           uint64_t identity, size_t bytes,
                                                           const cuda::PrimaryContext& gpu);
  virtual ~CudaMapping() = default;
  CudaMapping(const CudaMapping&) = delete;
  CudaMapping& operator=(const CudaMapping&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 protected:
  CudaMapping(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}

 private:
  std::byte* const data_;
  const size_t bytes_;
};

// Reserves addresses for chunks of `bytes` in all, which are mapped later (chunk_map.h). All of
// `gpus` may read and write them. None of its calls waits for a GPU.
Result<std::unique_ptr<ChunkSpace>> reserveForChunks(size_t bytes, cuda::Gpus gpus);

// Lets `gpu` reach memory of this process that lies on another GPU: [allocation, +bytes), a whole
// allocation or whole chunks side by side. Once per pair is enough for cudaMalloc memory, once per
// pool for memory of pools; VMM memory is opened piece by piece. Errors: kNotSupported when the two
// have no path to each other.
Status openToGpu(const std::byte* allocation, size_t bytes, int owner,
                 const cuda::PrimaryContext& gpu);

}  // namespace peerlane
