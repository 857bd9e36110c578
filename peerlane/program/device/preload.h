// SPDX-License-Identifier: Apache-2.0
//
// preload(): loads a kernel of yours before something waits for a peer. Header only, because the
// kernel is known to the CUDA runtime that your program is linked with, which need not be this
// library's. Empty where CUDA's headers are not found. Thread-safe: there is no state.
#pragma once

#if __has_include(<cuda_runtime_api.h>)

#include <cuda_runtime_api.h>

#include <string>
#include <type_traits>

#include "peerlane/core/status.h"

namespace peerlane {

// Loads `kernel`, a __global__ function, on the current device, without a launch.
//
// Why: CUDA loads a kernel at its first launch (CUDA_MODULE_LOADING=LAZY, the default), and that
// first launch waits for everything that runs on the device. If a kernel or a stream there waits
// for a peer, and the peer waits for something that this thread was about to do, the launch never
// returns. docs/gotchas.md has the figures.
//
// When: once for each kernel and each device, before anything on that device waits for a peer,
// because the call itself may wait like that first launch. Calling it again does no harm. Kernels
// of libraries that you cannot name are loaded by CUDA_MODULE_LOADING=EAGER only; Peerlane's own by
// Context::create.
//
// Errors: kInvalidArgument (null, or no kernel of this program), kNotSupported (no device, no
// driver or one that is too old, no code for this device), kOutOfMemory, kSystem (anything else,
// among it what went wrong on the device before). CUDA's "last error" is then cleared, so that no
// later launch is blamed for it.
template <class Kernel>
[[gnu::visibility("hidden")]] Status preload(Kernel* kernel) {
  static_assert(std::is_function_v<Kernel>, "preload() takes a __global__ function");
  if (kernel == nullptr) return Status(Code::kInvalidArgument, "preload: the kernel is null");
  cudaFuncAttributes attributes{};
  const cudaError_t error =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel));
  if (error == cudaSuccess) return Status::ok();
  (void)cudaGetLastError();
  Code code = Code::kSystem;
  switch (error) {
    case cudaErrorInvalidDeviceFunction: code = Code::kInvalidArgument; break;
    case cudaErrorMemoryAllocation: code = Code::kOutOfMemory; break;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion: code = Code::kNotSupported; break;
    default: break;
  }
  return Status(code, std::string("preload: ") + cudaGetErrorString(error) + " (" +
                          std::to_string(static_cast<int>(error)) + ")");
}

}  // namespace peerlane

#endif
