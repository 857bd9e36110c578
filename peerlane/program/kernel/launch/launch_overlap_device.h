// SPDX-License-Identifier: Apache-2.0
//
// Launches of one stream that overlap (programmatic dependent launch, sm_90 and newer): the one
// behind is set up while the one before comes to its end. Without the launch attribute, or on older
// devices, both calls do nothing. All threads of a kernel call.
#pragma once

#if defined(__CUDACC__)

namespace peerlane::kernel {

// Behind it, everything that the kernel before wrote is there.
__device__ __forceinline__ void awaitKernelBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Not before the last wait for a peer: what begins occupies the device, and somebody whom the wait
// is for may need it.
__device__ __forceinline__ void letKernelBehindBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace peerlane::kernel

#endif  // defined(__CUDACC__)
