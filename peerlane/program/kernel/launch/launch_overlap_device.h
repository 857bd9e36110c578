// SPDX-License-Identifier: Apache-2.0
//
// Launches of one stream that overlap (programmatic dependent launch, sm_90 and newer): the device
// sets up the next launch while the one before it ends. Without the launch attribute, or on older
// devices, both functions do nothing. All threads of a kernel must call them.
#pragma once

#if defined(__CUDACC__)

namespace peerlane::kernel {

// When it returns, everything that the kernel before wrote is visible.
__device__ __forceinline__ void awaitKernelBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// A kernel must not call it before its last wait for a peer: the launch that begins occupies the
// device, and the work that ends the wait may need the device.
__device__ __forceinline__ void letKernelBehindBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace peerlane::kernel

#endif  // defined(__CUDACC__)
