// SPDX-License-Identifier: Apache-2.0
//
// Bytes of GPU memory that the host brings there and looks at, and facts about the machine from the
// CUDA runtime. For commands that generate and verify content; no data path. There in every build:
// one without CUDA answers kNotSupported. Thread-safe; the calling thread's current GPU may change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "peerlane/core/status.h"
#include "peerlane/memory/device.h"

namespace peerlane {

// Done when they return, and ordered with no stream. `to` and `from` lie on `device`, which is a
// GPU.
Status copyToDevice(const Device& device, std::byte* to, std::span<const std::byte> from);
Status copyFromDevice(const Device& device, std::span<std::byte> to, const std::byte* from);

// Memory by cudaMalloc, as many programs take it. Freeing waits for the GPU.
struct RuntimeFree {
  void operator()(std::byte* memory) const;
};
using RuntimeMemory = std::unique_ptr<std::byte, RuntimeFree>;
Result<RuntimeMemory> allocateByRuntime(const Device& device, uint64_t bytes);

// A descriptor (dma-buf) of memory by allocateByRuntime(), whole pages of it, for NICs. The caller
// closes it.
// Errors: kNotSupported where the driver exports none.
Result<int> exportDmaBuf(const Device& device, const std::byte* at, uint64_t bytes);

// A stream of its own on `device`. Ending it waits for nothing.
struct StreamEnd {
  void operator()(void* stream) const;
};
using RuntimeStream = std::unique_ptr<void, StreamEnd>;
Result<RuntimeStream> makeRuntimeStream(const Device& device);

// Of all processes.
Result<uint64_t> bytesInUse(const Device& device);

// How one GPU reaches the memory of another. Asking makes no context.
struct GpuPath {
  bool direct = false;         // by loads, stores and copies, without the host's memory
  bool nativeAtomics = false;  // NVLink has them, PCIe has not
  int rank = 0;                // the driver's order of the paths of a machine; 0 is the best
};
Result<GpuPath> findGpuPath(int from, int to);
constexpr const char* gpuPathName(const GpuPath& path) {
  return !path.direct ? "none" : path.nativeAtomics ? "NVLink" : "PCIe";
}

// As cudaRuntimeGetVersion says it: 13000 is 13.0; 0: there is none.
struct CudaVersions {
  int runtime = 0;
  int driver = 0;
};
CudaVersions cudaVersions();

}  // namespace peerlane
