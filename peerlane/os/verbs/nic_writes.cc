// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/verbs/nic_writes.h"

#include "peerlane/os/cuda.h"

#ifdef PEERLANE_HAS_CUDA
#include "peerlane/os/cuda_driver.h"
#endif

namespace peerlane::cuda {

const char* textOf(NicWrites way) {
  switch (way) {
    case NicWrites::kOrdered: return "what a NIC wrote is there when a later word of it is";
    case NicWrites::kByFlush: return "what a NIC wrote is there after a flush by the host";
    case NicWrites::kByReading: break;
  }
  return "what a NIC wrote is there after a read by that NIC";
}

#ifdef PEERLANE_HAS_CUDA

Result<NicWrites> nicWritesOf(int gpu) {
  if (!driver().isOk()) return driver().status();
  CUdevice device = 0;
  int ordering = 0;
  int options = 0;
  PEERLANE_RETURN_IF_ERROR(check(api().cuDeviceGet(&device, gpu), "cuDeviceGet"));
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuDeviceGetAttribute(&ordering,
                                       CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, device),
            "cuDeviceGetAttribute (GPU_DIRECT_RDMA_WRITES_ORDERING)"));
  if (ordering >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER) return NicWrites::kOrdered;
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuDeviceGetAttribute(
                &options, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS, device),
            "cuDeviceGetAttribute (GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)"));
  const bool mayFlush = (options & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) != 0;
  return mayFlush ? NicWrites::kByFlush : NicWrites::kByReading;
}

Status flushNicWrites(const PrimaryContext& gpu) {
  const CurrentContext current(gpu);
  return check(api().cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                                CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER),
               "cuFlushGPUDirectRDMAWrites");
}

Status flushNicWrites(int gpu) {
  PEERLANE_ASSIGN(const PrimaryContext held, PrimaryContext::retain(gpu));
  return flushNicWrites(held);
}

#else

Result<NicWrites> nicWritesOf(int /*gpu*/) {
  return available();
}

Status flushNicWrites(const PrimaryContext& /*gpu*/) {
  return available();
}

Status flushNicWrites(int /*gpu*/) {
  return available();
}

#endif

}  // namespace peerlane::cuda
