// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_gpu/software_driver.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/fake/software_gpu/software_device.h"
#include "tests/fake/software_gpu/software_error.h"
#include "tests/fake/software_gpu/software_graph.h"
#include "tests/fake/software_gpu/software_nic.h"
#include "tests/fake/software_gpu/software_stream.h"
#include "tests/fake/software_gpu/software_words.h"

namespace peerlane::softgpu {
namespace {

struct Context {
  std::atomic<int> retained{0};
};
std::array<Context, kMostDevices> contexts;

bool isIpcCapable(const Allocation& allocation) {
  return allocation.kind == MemoryKind::kDevice;
}

// 0 where the memory is not CUDA's, as the real one answers for many at once.
CUresult attributeOf(void* value, CUpointer_attribute attribute, const Allocation* found,
                     CUdeviceptr pointer) {
  const auto put = [value](auto answer) {
    *static_cast<decltype(answer)*>(value) = answer;
    return CUDA_SUCCESS;
  };
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return put(found == nullptr || found->kind == MemoryKind::kMapped ? CUcontext{}
                                                                        : contextOf(found->device));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return put(found == nullptr  ? 0u
                 : found->isHost() ? unsigned{CU_MEMORYTYPE_HOST}
                                   : unsigned{CU_MEMORYTYPE_DEVICE});
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return put(found == nullptr ? 0 : pointer);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return put(found != nullptr && found->isHost() ? pointer : 0);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return put(found == nullptr ? 0ull : static_cast<unsigned long long>(found->id));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return put(unsigned{found != nullptr && found->kind == MemoryKind::kManaged});
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return put(found == nullptr ? -2 : found->device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return put(unsigned{found != nullptr && isIpcCapable(*found)});
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return put(found == nullptr ? CUdeviceptr{0} : CUdeviceptr{found->base});
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return put(found == nullptr ? size_t{0} : found->bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED: return put(unsigned{found != nullptr});
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return put(uint64_t{
          found == nullptr || found->physical == nullptr ? 0 : found->physical->handleTypes});
    // As on a real one, VMM memory is capable only where it was made for that.
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return put(unsigned{found != nullptr && found->kind == MemoryKind::kDevice});
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return put(found == nullptr ? nullptr : found->pool.get());
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

CUcontext contextOf(int device) {
  return reinterpret_cast<CUcontext>(&contexts[static_cast<size_t>(device)]);
}

int deviceOf(CUcontext context) {
  for (int device = 0; device < deviceCount(); ++device)
    if (contextOf(device) == context) return device;
  return -1;
}

}  // namespace peerlane::softgpu

using namespace peerlane::softgpu;

extern "C" {

CUresult cuInit(unsigned /*flags*/) {
  if (!isRightProc()) return CUDA_ERROR_OPERATING_SYSTEM;
  return deviceCount() == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int index) {
  if (!isDevice(index)) return CUDA_ERROR_INVALID_DEVICE;
  *device = index;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = deviceCount();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<size_t>(bytes), "software GPU");
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* text, int bytes, CUdevice device) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(text, static_cast<size_t>(bytes), "FFFF:%02X:00.0", device + 1);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::memcpy(uuid->bytes, "software GPU   ", 16);
  uuid->bytes[15] = static_cast<char>(device);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = kDeviceBytes;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = kMultiprocessors; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 227 * 1024; break;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
      *value = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
      break;
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: *value = !hasNoDmaBuf(); break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
      *value = nicWritesOrdering(device);
      break;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS:
      *value = nicFlushOptions(device);
      break;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS: *value = hasLongWordOps(); break;
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR: *value = hasNorWaits(); break;
    case CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES: *value = hasWordFlush(device); break;
    // Its memory is the host's.
    case CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED:
      *value = std::getenv("SOFTWARE_GPU_NO_HOST_ATOMICS") == nullptr ? 1 : 0;
      break;
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID: *value = -1; break;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED: *value = !fabricFails("absent"); break;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: *value = 0xffff; break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = device + 1; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return toDriver(cudaDeviceCanAccessPeer(can, device, peer));
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice device,
                                 CUdevice peer) {
  if (!isDevice(device) || !isDevice(peer) || device == peer) return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 0 : 1;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  ++contexts[static_cast<size_t>(device)].retained;
  *context = contextOf(device);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::atomic<int>& retained = contexts[static_cast<size_t>(device)].retained;
  if (retained.fetch_sub(1) > 0) return CUDA_SUCCESS;
  ++retained;
  return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  if (!isDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = contexts[static_cast<size_t>(device)].retained > 0 || hasRuntimeContext(device);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
  const int device = deviceOf(context);
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  pushContext(device);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  const int device = popContext();
  if (device < 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = contextOf(device);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = currentContext() < 0 ? nullptr : contextOf(currentContext());
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  const int device = deviceOf(context);
  if (device < 0) {
    (void)popContext();
    return context == nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
  }
  setDevice(device);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  if (currentContext() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  *device = currentContext();
  return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext context, unsigned flags) {
  if (currentContext() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  const int peer = deviceOf(context);
  if (peer < 0) return CUDA_ERROR_INVALID_CONTEXT;
  return toDriver(cudaDeviceEnablePeerAccess(peer, flags));
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  const AllocationPtr found = find(reinterpret_cast<const void*>(pointer));
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return attributeOf(value, attribute, found.get(), pointer);
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** values,
                                CUdeviceptr pointer) {
  const AllocationPtr found = find(reinterpret_cast<const void*>(pointer));
  for (unsigned i = 0; i < count; ++i)
    if (const CUresult failed = attributeOf(values[i], attributes[i], found.get(), pointer))
      return failed;
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                               CUdeviceptr pointer) {
  const AllocationPtr found = find(reinterpret_cast<const void*>(pointer));
  if (found == nullptr || value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_NOT_SUPPORTED;
  if (found->kind != MemoryKind::kDevice) return CUDA_ERROR_NOT_SUPPORTED;
  found->isSynchronous = *static_cast<const unsigned*>(value) != 0;
  return CUDA_SUCCESS;
}

// The file of the memory, opened anew, whose position is where the range begins in it: an importer
// finds the same bytes there that the GPU has. Of one physical allocation only.
CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr pointer, size_t bytes,
                                       CUmemRangeHandleType type, unsigned long long flags) {
  if (hasNoDmaBuf()) return CUDA_ERROR_NOT_SUPPORTED;
  if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags != 0) return CUDA_ERROR_NOT_SUPPORTED;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (pointer % page != 0 || bytes == 0 || bytes % page != 0) return CUDA_ERROR_INVALID_VALUE;
  const AllocationPtr found = find(reinterpret_cast<const void*>(pointer));
  if (found == nullptr || found->isHost() || found->physical == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  const size_t offset = pointer - found->base;
  if (bytes > found->mappedBytes - offset) return CUDA_ERROR_INVALID_VALUE;
  // A device must see what its copies did.
  if (found->kind == MemoryKind::kDevice && !found->isSynchronous)
    failDevice(found->device, "a dma-buf was made of memory without SYNC_MEMOPS");
  const std::string path = "/proc/self/fd/" + std::to_string(found->physical->fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (lseek(fd, found->physical->offset + static_cast<off_t>(offset), SEEK_SET) < 0) {
    close(fd);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *static_cast<int*>(handle) = fd;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr pointer) {
  if (currentContext() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  const AllocationPtr found = find(reinterpret_cast<const void*>(pointer));
  if (found == nullptr || found->isHost()) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = found->base;
  if (bytes != nullptr) *bytes = found->bytes;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long* id) {
  if (handle == nullptr && currentContext() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  const StreamPtr stream = findStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *id = stream->id();
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext* context) {
  if (handle == nullptr && currentContext() < 0) return CUDA_ERROR_INVALID_CONTEXT;
  const StreamPtr stream = findStream(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *context = contextOf(stream->device());
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  cudaStreamCaptureStatus found = cudaStreamCaptureStatusNone;
  const cudaError_t result = cudaStreamIsCapturing(stream, &found);
  *status = static_cast<CUstreamCaptureStatus>(found);
  return toDriver(result);
}

// Kernels are functions here, and are started as such.
CUresult cuLaunchKernelEx(const CUlaunchConfig* /*config*/, CUfunction /*function*/,
                          void** /*arguments*/, void** /*extra*/) {
  return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  return toDriver(cudaMemcpyAsync(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from),
                                  bytes, cudaMemcpyDefault, stream));
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  auto other = static_cast<cudaStreamCaptureMode>(*mode);
  const cudaError_t result = cudaThreadExchangeStreamCaptureMode(&other);
  *mode = static_cast<CUstreamCaptureMode>(other);
  return toDriver(result);
}

}  // extern "C"

namespace peerlane::softgpu {

void* findDriverEntry(const char* name) {
  struct Entry {
    const char* name;
    void* call;
  };
#define SOFTWARE_ENTRY(call) \
  { #call, reinterpret_cast < void*>(&::call) }
  // The macro's name is the plain one: its argument is not expanded before it becomes text.
  static const Entry entries[] = {SOFTWARE_ENTRY(cuInit),
                                  SOFTWARE_ENTRY(cuDriverGetVersion),
                                  SOFTWARE_ENTRY(cuGetErrorString),
                                  SOFTWARE_ENTRY(cuGetErrorName),
                                  SOFTWARE_ENTRY(cuDeviceGet),
                                  SOFTWARE_ENTRY(cuDeviceGetCount),
                                  SOFTWARE_ENTRY(cuDeviceGetName),
                                  SOFTWARE_ENTRY(cuDeviceGetPCIBusId),
                                  SOFTWARE_ENTRY(cuDeviceGetUuid),
                                  SOFTWARE_ENTRY(cuDeviceTotalMem),
                                  SOFTWARE_ENTRY(cuDeviceGetAttribute),
                                  SOFTWARE_ENTRY(cuDeviceCanAccessPeer),
                                  SOFTWARE_ENTRY(cuDeviceGetP2PAttribute),
                                  SOFTWARE_ENTRY(cuDevicePrimaryCtxGetState),
                                  SOFTWARE_ENTRY(cuDevicePrimaryCtxRetain),
                                  SOFTWARE_ENTRY(cuDevicePrimaryCtxRelease),
                                  SOFTWARE_ENTRY(cuCtxPushCurrent),
                                  SOFTWARE_ENTRY(cuCtxPopCurrent),
                                  SOFTWARE_ENTRY(cuCtxGetCurrent),
                                  SOFTWARE_ENTRY(cuCtxSetCurrent),
                                  SOFTWARE_ENTRY(cuLaunchKernelEx),
                                  SOFTWARE_ENTRY(cuMemcpyAsync),
                                  SOFTWARE_ENTRY(cuCtxGetDevice),
                                  SOFTWARE_ENTRY(cuCtxEnablePeerAccess),
                                  SOFTWARE_ENTRY(cuPointerGetAttribute),
                                  SOFTWARE_ENTRY(cuPointerGetAttributes),
                                  SOFTWARE_ENTRY(cuPointerSetAttribute),
                                  SOFTWARE_ENTRY(cuMemGetAddressRange),
                                  SOFTWARE_ENTRY(cuMemGetHandleForAddressRange),
                                  SOFTWARE_ENTRY(cuFlushGPUDirectRDMAWrites),
                                  SOFTWARE_ENTRY(cuMemCreate),
                                  SOFTWARE_ENTRY(cuMemRelease),
                                  SOFTWARE_ENTRY(cuMemAddressReserve),
                                  SOFTWARE_ENTRY(cuMemAddressFree),
                                  SOFTWARE_ENTRY(cuMemMap),
                                  SOFTWARE_ENTRY(cuMemUnmap),
                                  SOFTWARE_ENTRY(cuMemSetAccess),
                                  SOFTWARE_ENTRY(cuMemGetAccess),
                                  SOFTWARE_ENTRY(cuMemGetAllocationGranularity),
                                  SOFTWARE_ENTRY(cuMemGetAllocationPropertiesFromHandle),
                                  SOFTWARE_ENTRY(cuMemRetainAllocationHandle),
                                  SOFTWARE_ENTRY(cuMemExportToShareableHandle),
                                  SOFTWARE_ENTRY(cuMemImportFromShareableHandle),
                                  SOFTWARE_ENTRY(cuStreamWaitValue64),
                                  SOFTWARE_ENTRY(cuStreamWriteValue64),
                                  SOFTWARE_ENTRY(cuStreamBatchMemOp),
                                  SOFTWARE_ENTRY(cuStreamGetId),
                                  SOFTWARE_ENTRY(cuStreamGetCtx),
                                  SOFTWARE_ENTRY(cuStreamIsCapturing),
                                  SOFTWARE_ENTRY(cuThreadExchangeStreamCaptureMode),
                                  SOFTWARE_ENTRY(cuDeviceGetDefaultMemPool),
                                  SOFTWARE_ENTRY(cuMemPoolExportToShareableHandle),
                                  SOFTWARE_ENTRY(cuMemPoolImportFromShareableHandle),
                                  SOFTWARE_ENTRY(cuMemPoolExportPointer),
                                  SOFTWARE_ENTRY(cuMemPoolImportPointer),
                                  SOFTWARE_ENTRY(cuMemPoolSetAccess),
                                  SOFTWARE_ENTRY(cuMemPoolGetAccess),
                                  SOFTWARE_ENTRY(cuMemPoolDestroy),
                                  SOFTWARE_ENTRY(cuMemAllocAsync),
                                  SOFTWARE_ENTRY(cuMemFreeAsync)};
#undef SOFTWARE_ENTRY
  if (deviceCount() == 0) return nullptr;
  for (const Entry& entry : entries)
    if (std::strcmp(entry.name, name) == 0) return entry.call;
  return nullptr;
}

}  // namespace peerlane::softgpu
