// SPDX-License-Identifier: Apache-2.0
//
// For examples of one source and two programs: compiled by nvcc their kernels run on a GPU, by a
// C++ compiler the same code runs in CPU threads, on host memory.
#pragma once

#include "examples/roles.h"

namespace example {

#if defined(__CUDACC__)
inline constexpr bool kOnGpu = true;
#else
inline constexpr bool kOnGpu = false;
#endif

// Rank r takes GPU r, or, where there are fewer, the one that is left.
inline Result<peerlane::Device> deviceOf(int rank) {
#if defined(__CUDACC__)
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0)
    return Status(Code::kNotSupported,
                  "no GPU; the program of the same name without _gpu runs on CPU threads");
  return peerlane::Device{peerlane::DeviceKind::kCuda, rank % count};
#else
  (void)rank;
  return peerlane::Device{};
#endif
}

#if defined(__CUDACC__)
inline Status check(cudaError_t error) {
  return error == cudaSuccess ? Status::ok() : Status(Code::kSystem, cudaGetErrorString(error));
}
#endif

}  // namespace example
