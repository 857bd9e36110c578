// SPDX-License-Identifier: Apache-2.0
//
// Memory in the order of a stream: cudaMallocAsync and pools.
#include "tests/fake/software_gpu/software_device.h"
#include "tests/fake/software_gpu/software_error.h"

using namespace peerlane::softgpu;

extern "C" {

cudaError_t cudaFreeAsync(void* /*pointer*/, cudaStream_t /*stream*/) {
  return note(cudaErrorNotSupported);
}

}  // extern "C"
