// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/kernel/kernel_launch.h"

#include <cuda_runtime.h>

#include <atomic>
#include <string>

namespace peerlane::kernel {
namespace {

Status failed(cudaError_t error, const std::string& what) {
  (void)cudaGetLastError();  // it is reported here and shall not be found by somebody else's call
  return Status(Code::kSystem, what + ": " + cudaGetErrorString(error));
}

// Where launches may overlap, by device; found by loadKernel().
constexpr int kMaxDevices = 128;
std::atomic<bool> canOverlap[kMaxDevices];

bool overlaps(const KernelLaunch& launch) {
  int index = 0;
  return launch.overlapsEnd && cudaGetDevice(&index) == cudaSuccess && index < kMaxDevices &&
         canOverlap[index].load(std::memory_order_relaxed);
}

}  // namespace

Status loadKernel(const void* kernel, const char* what) {
  int index = 0, major = 0;
  if (cudaError_t error = cudaGetDevice(&index)) return failed(error, "asking for the device");
  if (cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index))
    return failed(error, "asking for the compute capability");
  cudaFuncAttributes attributes;
  if (cudaError_t error = cudaFuncGetAttributes(&attributes, kernel))
    return failed(error, std::string("loading ") + what);
  if (index < kMaxDevices) canOverlap[index].store(major >= 9, std::memory_order_relaxed);
  return Status::ok();
}

Status launchKernel(const KernelLaunch& launch, void* job, const char* what) {
  void* arguments[] = {job};
  auto* const stream = static_cast<cudaStream_t>(launch.stream);
  if (!overlaps(launch)) {
    if (cudaError_t error = cudaLaunchKernel(launch.kernel, dim3(launch.ctas), dim3(launch.threads),
                                             arguments, 0, stream))
      return failed(error, what);
    return Status::ok();
  }
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(launch.ctas);
  config.blockDim = dim3(launch.threads);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  if (cudaError_t error = cudaLaunchKernelExC(&config, launch.kernel, arguments))
    return failed(error, what);
  return Status::ok();
}

}  // namespace peerlane::kernel
