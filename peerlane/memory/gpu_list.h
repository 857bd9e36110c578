// SPDX-License-Identifier: Apache-2.0
//
// The GPUs that this process sees, for programs that let their users choose one. Every build has
// these functions. listGpus() makes no CUDA context and uses no GPU memory. Plain values;
// thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane {

struct Gpu {
  int index = 0;  // Device::index: as the driver counts in this process (CUDA_VISIBLE_DEVICES)
  std::string name{};
  std::string busId{};  // "0000:17:00.0"
  std::string uuid{};   // "GPU-5ebe9f43-...": the same in every process
  uint64_t memoryBytes = 0;
  int computeMajor = 0;  // compute capability
  int computeMinor = 0;
  bool exportsDescriptors = false;  // memory of Context::allocate can travel to other processes
  bool fabricHandles = false;       // as the driver says; tryFabricHandles() tries them
};

// kNotSupported with the reason: no CUDA in this build, no driver or one that is too old, no GPU.
Result<std::vector<Gpu>> listGpus();

// Gpu::index of the GPU whose memory `pointer` is in. Errors: kInvalidArgument (no memory of a
// GPU), and those of listGpus().
Result<int> gpuOf(const void* pointer);

// Whether memory of that GPU can travel by fabric handle: the call makes 2 MiB of such memory,
// exports them and imports them again. kNotSupported names the step that failed: most machines
// without an IMEX channel refuse it, even where the driver reports support. Makes a CUDA context on
// that GPU for the duration of the call. Unverified between processes: this code has not yet run on
// a machine with an IMEX channel.
Status tryFabricHandles(int gpu);

// "13.0 (driver 13.0)": the CUDA runtime of this build and the version that the driver supports, or
// why there is none. For people.
std::string cudaVersionText();

}  // namespace peerlane
