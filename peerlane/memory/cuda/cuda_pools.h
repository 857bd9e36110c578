// SPDX-License-Identifier: Apache-2.0
//
// CudaPools: memory of cudaMallocAsync between processes. A pool that was made for export travels
// as a descriptor, an allocation in it as data that only a process with the pool can use. CUDA has
// one rule for it: an importer must free an allocation before its owner does. So each import is a
// hold (ImportedPoolMemory::hold), whose end frees it and calls back. Any thread; no call waits for
// the GPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/memory/device_pin.h"
#include "peerlane/os/cuda.h"
#include "peerlane/os/fd.h"

namespace peerlane {

// A pool of this process as its importers know it.
struct ExportedPool {
  std::array<std::byte, 16> name{};  // random
  Fd fd;
};

// One allocation of a pool of this process.
struct PoolMemory {
  std::shared_ptr<const ExportedPool> pool;  // null: it cannot be exported
  std::string whyNot;
  std::vector<std::byte> handle;  // for importers, in addition to the pool's descriptor
};

// The bytes of PoolMemory::handle: the pool's name, then the driver's data.
inline constexpr size_t kPoolHandleBytes = 16 + 64;
// More in one allocation ended the importing process inside the driver (580.126; reported, not
// tried here).
inline constexpr uint64_t kMostPoolBytes = uint64_t{5} << 30;

// `pool`: CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE of `allocation`, which begins there.
Result<PoolMemory> describePoolMemory(void* pool, const void* allocation, size_t bytes,
                                      uint64_t identity);

// Memory of a peer's pool, mapped here once for all importers of this process.
struct ImportedPoolMemory {
  std::byte* data = nullptr;
  std::unique_ptr<DevicePin> hold;  // the end of the last one in this process frees it
};
// All of `gpus` may read and write it. Takes `fd`, which stands for the pool. Errors: kCorrupt (a
// handle of another length, an allocation of fewer bytes than its owner told), kSystem,
// kNotSupported.
Result<ImportedPoolMemory> importPoolMemory(Fd fd, std::span<const std::byte> handle,
                                            uint64_t identity, size_t bytes,
                                            const cuda::Gpus& gpus);

// The pool of this process that `allocation` was taken from; null: none.
void* poolOf(const void* allocation);
// Lets `gpu` reach all memory of a pool of this process: peer access of GPUs does not count there.
Status openPoolToGpu(void* pool, const cuda::PrimaryContext& gpu);

}  // namespace peerlane
