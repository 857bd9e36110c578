// SPDX-License-Identifier: Apache-2.0
#include "tools/device_bytes.h"

#include <cuda_runtime_api.h>

#include <string>

namespace peerlane {
namespace {

Status check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return Status::ok();
  (void)cudaGetLastError();
  const Code code = result == cudaErrorMemoryAllocation ? Code::kOutOfMemory : Code::kSystem;
  return Status(code, std::string(what) + ": " + cudaGetErrorString(result));
}

// On a stream of its own: the default stream would wait for other streams, and the copy of pageable
// memory returns before its bytes have arrived.
Status copy(const Device& device, void* to, const void* from, size_t bytes) {
  PEERLANE_RETURN_IF_ERROR(check(cudaSetDevice(device.index), "cudaSetDevice"));
  cudaStream_t stream = nullptr;
  PEERLANE_RETURN_IF_ERROR(
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"));
  Status copied =
      check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  if (copied.isOk()) copied = check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  (void)cudaStreamDestroy(stream);
  return copied;
}

}  // namespace

Status copyToDevice(const Device& device, std::byte* to, std::span<const std::byte> from) {
  return copy(device, to, from.data(), from.size());
}

Status copyFromDevice(const Device& device, std::span<std::byte> to, const std::byte* from) {
  return copy(device, to.data(), from, to.size());
}

Result<RuntimeMemory> allocateByRuntime(const Device& device, uint64_t bytes) {
  PEERLANE_RETURN_IF_ERROR(check(cudaSetDevice(device.index), "cudaSetDevice"));
  void* memory = nullptr;
  PEERLANE_RETURN_IF_ERROR(check(cudaMalloc(&memory, bytes), "cudaMalloc"));
  return RuntimeMemory(static_cast<std::byte*>(memory));
}

void RuntimeFree::operator()(std::byte* memory) const {
  (void)cudaFree(memory);
}

Result<GpuPath> findGpuPath(int from, int to) {
  int direct = 0;
  PEERLANE_RETURN_IF_ERROR(
      check(cudaDeviceCanAccessPeer(&direct, from, to), "cudaDeviceCanAccessPeer"));
  GpuPath path{.direct = direct != 0};
  int atomics = 0;
  int rank = 0;
  // What it does not say is no failure: the two are for people.
  if (cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, from, to) ==
          cudaSuccess &&
      cudaDeviceGetP2PAttribute(&rank, cudaDevP2PAttrPerformanceRank, from, to) == cudaSuccess) {
    path.nativeAtomics = atomics != 0;
    path.rank = rank;
  }
  (void)cudaGetLastError();
  return path;
}

CudaVersions cudaVersions() {
  CudaVersions versions{.runtime = CUDART_VERSION};
  if (cudaDriverGetVersion(&versions.driver) != cudaSuccess) versions.driver = 0;
  (void)cudaGetLastError();
  return versions;
}

}  // namespace peerlane
