// SPDX-License-Identifier: Apache-2.0
//
// Results of the software GPU's calls: the last failure of each thread, and both faces' numbers,
// which mean the same wherever both have one.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace peerlane::softgpu {

// Remembers a failure for cudaGetLastError(), and hands it through.
cudaError_t note(cudaError_t result);

inline CUresult toDriver(cudaError_t result) {
  return static_cast<CUresult>(result);
}

}  // namespace peerlane::softgpu
