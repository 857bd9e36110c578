// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/kernel/launch/kernel_launch.h"

#include <cuda_runtime.h>

#include <atomic>
#include <string>

#include "peerlane/os/cuda_driver.h"

namespace peerlane::kernel {
namespace {

Status failed(cudaError_t error, const std::string& what) {
  (void)cudaGetLastError();  // reported here, so no later call of the program may find it
  return Status(Code::kSystem, what + ": " + cudaGetErrorString(error));
}

constexpr int kMaxDevices = 128;
constexpr size_t kMaxKernels = 64;

// A kernel as the driver knows it on each device, found by loadKernel(): the runtime looks it up at
// every launch, which costs a tenth of the launch.
struct Loaded {
  std::atomic<const void*> kernel{nullptr};
  std::atomic<CUfunction> byDevice[kMaxDevices]{};
};
Loaded loaded[kMaxKernels];
std::atomic<bool> canOverlap[kMaxDevices];

// Null when the table is full.
Loaded* placeOf(const void* kernel) {
  for (Loaded& place : loaded) {
    const void* known = nullptr;
    if (place.kernel.compare_exchange_strong(known, kernel) || known == kernel) return &place;
  }
  return nullptr;
}

CUfunction functionOf(const void* kernel, int device) {
  for (const Loaded& place : loaded) {
    const void* const known = place.kernel.load(std::memory_order_acquire);
    if (known == kernel) return place.byDevice[device].load(std::memory_order_acquire);
    if (known == nullptr) break;
  }
  return nullptr;
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
  cudaFunction_t function = nullptr;
  if (cudaError_t error = cudaGetFuncBySymbol(&function, kernel))
    return failed(error, std::string("looking up ") + what);
  Loaded* const place = placeOf(kernel);
  if (index >= kMaxDevices || place == nullptr)
    return Status(Code::kInternal, std::string(what) + ": no room for it");
  place->byDevice[index].store(function, std::memory_order_release);
  canOverlap[index].store(major >= 9, std::memory_order_relaxed);
  return Status::ok();
}

Status launchKernel(const KernelLaunch& launch, void* job, const char* what) {
  const cuda::Driver& driver = cuda::api();
  CUdevice device = 0;
  if (driver.cuCtxGetDevice(&device) != CUDA_SUCCESS)
    return Status(Code::kInternal, std::string(what) + ": no device is current");
  const CUfunction function = device < kMaxDevices ? functionOf(launch.kernel, device) : nullptr;
  if (function == nullptr)
    return Status(Code::kInternal, std::string(what) + ": it was not loaded on this device");
  CUlaunchAttribute overlap{};
  overlap.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  overlap.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = launch.ctas;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = launch.threads;
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = launch.dynamicBytes;
  config.hStream = static_cast<CUstream>(launch.stream);
  config.attrs = &overlap;
  config.numAttrs =
      launch.overlapsEnd && canOverlap[device].load(std::memory_order_relaxed) ? 1 : 0;
  void* arguments[] = {job};
  return cuda::check(driver.cuLaunchKernelEx(&config, function, arguments, nullptr), what);
}

}  // namespace peerlane::kernel
