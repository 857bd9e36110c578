// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/cuda/cuda_export.h"

#include <unistd.h>

#include <cstring>
#include <string>

#include "peerlane/memory/vmm_handle.h"
#include "peerlane/os/cuda_driver.h"

namespace peerlane {
namespace {

using cuda::api;
using cuda::check;

// GPUs place memory that other devices reach in pages of at least this size.
constexpr uint64_t kGpuPageBytes = 64 << 10;

CUdeviceptr addressOf(const CudaRange& range) {
  return reinterpret_cast<CUdeviceptr>(range.base);
}

Result<int> attributeOf(const CudaRange& range, CUdevice_attribute attribute, const char* what) {
  CUdevice device = 0;
  int value = 0;
  PEERLANE_RETURN_IF_ERROR(check(api().cuDeviceGet(&device, range.gpu->gpu()), "cuDeviceGet"));
  PEERLANE_RETURN_IF_ERROR(check(api().cuDeviceGetAttribute(&value, attribute, device), what));
  return value;
}

// Without it the driver may return from a copy before the bytes are there for other devices. It
// knows no such order for VMM memory and pools, whose copies are ordered by their streams.
Status orderCopies(const CudaRange& range) {
  const unsigned one = 1;
  const CUresult set =
      api().cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, addressOf(range));
  if (set == CUDA_SUCCESS) return Status::ok();
  void* pool = nullptr;
  const bool isOfPool = api().cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                                    addressOf(range)) == CUDA_SUCCESS &&
                        pool != nullptr;
  if (isOfPool || vmmKindOf(range.base).isVmm) return Status::ok();
  return check(set, "cuPointerSetAttribute (SYNC_MEMOPS)");
}

Result<ExportedRange> exportDmaBuf(const CudaRange& range) {
  PEERLANE_ASSIGN(const int isSupported, attributeOf(range, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
                                                     "cuDeviceGetAttribute (DMA_BUF_SUPPORTED)"));
  if (isSupported == 0)
    return Status(Code::kNotSupported,
                  "the driver exports no dma-buf of cuda:" + std::to_string(range.gpu->gpu()) +
                      " (it takes the open kernel modules, and Linux 5.12)");
  PEERLANE_RETURN_IF_ERROR(orderCopies(range));
  const auto pageBytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  ExportedRange made;
  made.pageBytes = pageBytes;
  made.offset = addressOf(range) % pageBytes;
  const uint64_t whole = (made.offset + range.bytes + pageBytes - 1) / pageBytes * pageBytes;
  int fd = -1;
  const CUresult exported = api().cuMemGetHandleForAddressRange(
      &fd, addressOf(range) - made.offset, whole, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  // The driver's answer for memory that it can make no dma-buf of.
  if (exported == CUDA_ERROR_INVALID_VALUE)
    return Status(Code::kNotSupported, "the driver makes no dma-buf of this memory");
  PEERLANE_RETURN_IF_ERROR(check(exported, "cuMemGetHandleForAddressRange"));
  made.fd = Fd(fd);
  return made;
}

Result<ExportedRange> exportPeerAddress(const CudaRange& range) {
  unsigned isCapable = 0;
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuPointerGetAttribute(&isCapable, CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE,
                                        addressOf(range)),
            "cuPointerGetAttribute (GPU_DIRECT_RDMA_CAPABLE)"));
  if (isCapable == 0)
    return Status(Code::kNotSupported, "the memory was not made for GPUDirect RDMA");
  PEERLANE_RETURN_IF_ERROR(orderCopies(range));
  ExportedRange made;
  made.pageBytes = kGpuPageBytes;
  return made;
}

Result<ExportedRange> exportHandle(const CudaRange& range) {
  unsigned isCapable = 0;
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuPointerGetAttribute(&isCapable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                        addressOf(range)),
            "cuPointerGetAttribute (IS_LEGACY_CUDA_IPC_CAPABLE)"));
  if (isCapable == 0)
    return Status(Code::kNotSupported, "the memory is not cudaMalloc's; it has no IPC handle");
  CUdeviceptr base = 0;
  size_t bytes = 0;
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuMemGetAddressRange(&base, &bytes, addressOf(range)), "cuMemGetAddressRange"));
  cudaIpcMemHandle_t handle;
  const Status got =
      check(cudaIpcGetMemHandle(&handle, reinterpret_cast<void*>(base)), "cudaIpcGetMemHandle");
  if (!got.isOk()) {
    (void)cudaGetLastError();
    return got;
  }
  ExportedRange made;
  made.pageBytes = kGpuPageBytes;
  made.offset = addressOf(range) - base;
  made.handle.resize(sizeof(handle));
  std::memcpy(made.handle.data(), &handle, sizeof(handle));
  return made;
}

}  // namespace

Result<MemoryFacts> cudaFacts(const CudaRange& range) {
  const cuda::CurrentContext current(*range.gpu);
  MemoryFacts facts;
  facts.device = {DeviceKind::kCuda, range.gpu->gpu()};
  facts.pageBytes = kGpuPageBytes;
  facts.isCoherent = false;
  facts.isCpuMappable = false;
  PEERLANE_ASSIGN(const int node, attributeOf(range, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID,
                                              "cuDeviceGetAttribute (HOST_NUMA_ID)"));
  if (node >= 0) facts.numaNode = node;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuMemGetAddressRange(&base, &bytes, addressOf(range)), "cuMemGetAddressRange"));
  facts.allocation = {reinterpret_cast<std::byte*>(base), bytes};
  facts.allocationId = cuda::identityOf(range.base);
  return facts;
}

Result<ExportedRange> exportCuda(ExportForm form, const CudaRange& range) {
  const cuda::CurrentContext current(*range.gpu);
  switch (form) {
    case ExportForm::kDmaBuf: return exportDmaBuf(range);
    case ExportForm::kPeerAddress: return exportPeerAddress(range);
    case ExportForm::kIpcHandle: return exportHandle(range);
    case ExportForm::kAddress:
      return Status(Code::kNotSupported, "it is GPU memory, which the CPU's pages do not lead to");
    case ExportForm::kFile:
      return Status(Code::kNotSupported, "it is GPU memory, which no file maps");
  }
  return Status(Code::kInvalidArgument, "an unknown form of memory");
}

}  // namespace peerlane
