// SPDX-License-Identifier: Apache-2.0
#include "tools/memory/device_bytes.h"

// The driver's types only: nothing of it is linked.
#include <cuda.h>
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

template <typename Call>
Call findCall(const char* name, unsigned version = 8000) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  (void)cudaGetDriverEntryPointByVersion(name, &entry, version, cudaEnableDefault, &found);
#else
  (void)version;
  (void)cudaGetDriverEntryPoint(name, &entry, cudaEnableDefault, &found);
#endif
  (void)cudaGetLastError();
  return found == cudaDriverEntryPointSuccess ? reinterpret_cast<Call>(entry) : nullptr;
}

// The driver's own calls, which surely make no context.
struct PathCalls {
  decltype(&cuInit) start = findCall<decltype(&cuInit)>("cuInit");
  decltype(&cuDeviceGet) device = findCall<decltype(&cuDeviceGet)>("cuDeviceGet");
  decltype(&cuDeviceCanAccessPeer) canAccess =
      findCall<decltype(&cuDeviceCanAccessPeer)>("cuDeviceCanAccessPeer");
  decltype(&cuDeviceGetP2PAttribute) attribute =
      findCall<decltype(&cuDeviceGetP2PAttribute)>("cuDeviceGetP2PAttribute");

  bool complete() const { return start && device && canAccess && attribute; }
};

const PathCalls& pathCalls() {
  static const PathCalls only;
  return only;
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

Result<int> exportDmaBuf(const Device& device, const std::byte* at, uint64_t bytes) {
  using Call = decltype(&cuMemGetHandleForAddressRange);
  const auto call = findCall<Call>("cuMemGetHandleForAddressRange", 11070);
  const auto set = findCall<decltype(&cuPointerSetAttribute)>("cuPointerSetAttribute", 6000);
  if (call == nullptr || set == nullptr)
    return Status(Code::kNotSupported,
                  "the driver has no cuMemGetHandleForAddressRange; need one for CUDA 11.7");
  PEERLANE_RETURN_IF_ERROR(check(cudaSetDevice(device.index), "cudaSetDevice"));
  // Else copies may return before their bytes are there for other devices.
  const unsigned one = 1;
  if (const CUresult ordered =
          set(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, reinterpret_cast<CUdeviceptr>(at));
      ordered != CUDA_SUCCESS)
    return Status(Code::kSystem, "cuPointerSetAttribute (SYNC_MEMOPS): error " +
                                     std::to_string(static_cast<int>(ordered)));
  int descriptor = -1;
  const CUresult result = call(&descriptor, reinterpret_cast<CUdeviceptr>(at), bytes,
                               CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (result == CUDA_SUCCESS) return descriptor;
  return Status(Code::kNotSupported, "cuMemGetHandleForAddressRange: error " +
                                         std::to_string(static_cast<int>(result)) +
                                         ": the driver exports no descriptor of this memory");
}

void RuntimeFree::operator()(std::byte* memory) const {
  (void)cudaFree(memory);
}

void StreamEnd::operator()(void* stream) const {
  (void)cudaStreamDestroy(static_cast<cudaStream_t>(stream));
}

Result<RuntimeStream> makeRuntimeStream(const Device& device) {
  PEERLANE_RETURN_IF_ERROR(check(cudaSetDevice(device.index), "cudaSetDevice"));
  cudaStream_t stream = nullptr;
  PEERLANE_RETURN_IF_ERROR(
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"));
  return RuntimeStream(stream);
}

Result<uint64_t> bytesInUse(const Device& device) {
  size_t free = 0, total = 0;
  if (cudaSetDevice(device.index) != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess)
    return Status(Code::kSystem, "asking for the memory of " + device.toString() + ": " +
                                     cudaGetErrorString(cudaGetLastError()));
  return uint64_t{total - free};
}

Result<GpuPath> findGpuPath(int from, int to) {
  const PathCalls& calls = pathCalls();
  if (!calls.complete() || calls.start(0) != CUDA_SUCCESS)
    return Status(Code::kNotSupported, "no CUDA driver that knows paths between GPUs");
  CUdevice one = 0;
  CUdevice other = 0;
  int direct = 0;
  if (calls.device(&one, from) != CUDA_SUCCESS || calls.device(&other, to) != CUDA_SUCCESS ||
      calls.canAccess(&direct, one, other) != CUDA_SUCCESS)
    return Status(Code::kSystem, "the path from cuda:" + std::to_string(from) +
                                     " to cuda:" + std::to_string(to) + " cannot be asked for");
  GpuPath path{.direct = direct != 0};
  // An attribute that the driver does not tell is no failure: the two are for people.
  int value = 0;
  if (calls.attribute(&value, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, one, other) ==
      CUDA_SUCCESS)
    path.nativeAtomics = value != 0;
  if (calls.attribute(&value, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, one, other) == CUDA_SUCCESS)
    path.rank = value;
  return path;
}

CudaVersions cudaVersions() {
  CudaVersions versions{.runtime = CUDART_VERSION};
  if (cudaDriverGetVersion(&versions.driver) != cudaSuccess) versions.driver = 0;
  (void)cudaGetLastError();
  return versions;
}

}  // namespace peerlane
