// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver's entry points that this library uses, looked up when first needed, each by the
// version whose signature we were compiled with. Never linked: the same binary runs where there is
// no driver. For sources that are compiled with CUDA only. Immutable once loaded.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "peerlane/core/status.h"

namespace peerlane::cuda {

// name, CUDA version (1000 * major + 10 * minor) of the signature
#define PEERLANE_CUDA_ENTRIES(ENTRY)                   \
  ENTRY(cuInit, 2000)                                  \
  ENTRY(cuGetErrorString, 6000)                        \
  ENTRY(cuDeviceGet, 2000)                             \
  ENTRY(cuDeviceGetCount, 2000)                        \
  ENTRY(cuDeviceGetName, 2000)                         \
  ENTRY(cuDeviceGetPCIBusId, 4010)                     \
  ENTRY(cuDeviceGetAttribute, 2000)                    \
  ENTRY(cuDeviceTotalMem, 3020)                        \
  ENTRY(cuDeviceGetUuid, 11040)                        \
  ENTRY(cuDevicePrimaryCtxRetain, 7000)                \
  ENTRY(cuDevicePrimaryCtxRelease, 11000)              \
  ENTRY(cuDevicePrimaryCtxGetState, 7000)              \
  ENTRY(cuCtxPushCurrent, 4000)                        \
  ENTRY(cuCtxPopCurrent, 4000)                         \
  ENTRY(cuCtxEnablePeerAccess, 4000)                   \
  ENTRY(cuDeviceCanAccessPeer, 4000)                   \
  ENTRY(cuDeviceGetP2PAttribute, 8000)                 \
  ENTRY(cuPointerGetAttribute, 4000)                   \
  ENTRY(cuPointerGetAttributes, 7000)                  \
  ENTRY(cuPointerSetAttribute, 6000)                   \
  ENTRY(cuMemGetAddressRange, 3020)                    \
  ENTRY(cuMemGetHandleForAddressRange, 11070)          \
  ENTRY(cuFlushGPUDirectRDMAWrites, 11030)             \
  ENTRY(cuMemCreate, 10020)                            \
  ENTRY(cuMemRelease, 10020)                           \
  ENTRY(cuMemAddressReserve, 10020)                    \
  ENTRY(cuMemAddressFree, 10020)                       \
  ENTRY(cuMemMap, 10020)                               \
  ENTRY(cuMemUnmap, 10020)                             \
  ENTRY(cuMemSetAccess, 10020)                         \
  ENTRY(cuMemGetAllocationGranularity, 10020)          \
  ENTRY(cuMemGetAllocationPropertiesFromHandle, 10020) \
  ENTRY(cuMemRetainAllocationHandle, 11000)            \
  ENTRY(cuMemExportToShareableHandle, 10020)           \
  ENTRY(cuMemImportFromShareableHandle, 10020)         \
  ENTRY(cuMemPoolExportToShareableHandle, 11020)       \
  ENTRY(cuMemPoolImportFromShareableHandle, 11020)     \
  ENTRY(cuMemPoolExportPointer, 11020)                 \
  ENTRY(cuMemPoolImportPointer, 11020)                 \
  ENTRY(cuMemPoolSetAccess, 11020)                     \
  ENTRY(cuMemPoolGetAccess, 11020)                     \
  ENTRY(cuMemPoolDestroy, 11020)                       \
  ENTRY(cuMemcpyAsync, 4000)                           \
  ENTRY(cuStreamWaitValue64, 11070)                    \
  ENTRY(cuStreamWriteValue64, 11070)                   \
  ENTRY(cuStreamBatchMemOp, 11070)                     \
  ENTRY(cuStreamGetId, 12000)                          \
  ENTRY(cuStreamGetCtx, 9020)                          \
  ENTRY(cuStreamIsCapturing, 10000)                    \
  ENTRY(cuLaunchKernelEx, 11060)                       \
  ENTRY(cuCtxGetCurrent, 4000)                         \
  ENTRY(cuCtxGetDevice, 2000)

struct Driver {
#define PEERLANE_CUDA_MEMBER(name, version) decltype(&::name) name = nullptr;
  PEERLANE_CUDA_ENTRIES(PEERLANE_CUDA_MEMBER)
#undef PEERLANE_CUDA_MEMBER
};

// The driver, initialised. kNotSupported with the reason when it cannot be used; the answer stays.
const Result<const Driver*>& driver();

// The same where it is known to be there.
inline const Driver& api() {
  return **driver();
}

// OK, or `what` with the driver's or the runtime's sentence. kOutOfMemory where it says so.
Status check(CUresult result, const char* what);
Status check(cudaError_t result, const char* what);

}  // namespace peerlane::cuda
