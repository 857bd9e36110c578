// SPDX-License-Identifier: Apache-2.0
//
// How kernels are made resident and launched on the caller's current device: the runtime's calls
// and their errors as Status. For sources that nvcc compiles. Any thread.
#pragma once

#include <cstdint>

#include "peerlane/core/status.h"

namespace peerlane::kernel {

struct KernelLaunch {
  const void* kernel = nullptr;
  uint32_t ctas = 1;
  uint32_t threads = 32;
  uint32_t dynamicBytes = 0;  // of shared memory, for each block
  bool overlapsEnd = false;   // where the device can: launch_overlap_device.h
  void* stream = nullptr;     // cudaStream_t
};

// Errors: System, naming `what`, in both.
Status loadKernel(const void* kernel, const char* what);
Status launchKernel(const KernelLaunch& launch, void* job, const char* what);

}  // namespace peerlane::kernel
