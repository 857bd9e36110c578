// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/fabric_probe.h"

#include <map>
#include <string>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/vmm_handle.h"
#include "peerlane/os/cuda_driver.h"

namespace peerlane {
namespace {

using cuda::api;
using cuda::check;

Status exportAndImport(CUmemGenericAllocationHandle made) {
  VmmHandle handle;
  handle.fabric.resize(kFabricHandleBytes);
  PEERLANE_RETURN_IF_ERROR(check(
      api().cuMemExportToShareableHandle(handle.fabric.data(), made, CU_MEM_HANDLE_TYPE_FABRIC, 0),
      "cuMemExportToShareableHandle (fabric)"));
  PEERLANE_ASSIGN(const CUmemGenericAllocationHandle imported, importVmm(handle));
  return check(api().cuMemRelease(imported), "cuMemRelease");
}

Status probe(const cuda::PrimaryContext& gpu) {
  const cuda::CurrentContext current(gpu);
  CUdevice device = 0;
  PEERLANE_RETURN_IF_ERROR(check(api().cuDeviceGet(&device, gpu.gpu()), "cuDeviceGet"));
  int offered = 0;
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuDeviceGetAttribute(&offered, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
                                       device),
            "cuDeviceGetAttribute"));
  if (offered == 0) return Status(Code::kNotSupported, "the driver offers none");
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = gpu.gpu();
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  size_t bytes = 0;
  PEERLANE_RETURN_IF_ERROR(check(
      api().cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
      "cuMemGetAllocationGranularity"));
  CUmemGenericAllocationHandle made = 0;
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuMemCreate(&made, bytes, &properties, 0), "cuMemCreate (fabric)"));
  Status travelled = exportAndImport(made);
  (void)api().cuMemRelease(made);
  return travelled;
}

struct Answers {
  Mutex mutex;
  std::map<int, Status> byGpu PEERLANE_GUARDED_BY(mutex);
};
Answers& answers() {
  static auto* const only = new Answers;
  return *only;
}

}  // namespace

Status tryFabric(const cuda::PrimaryContext& gpu) {
  Answers& all = answers();
  const MutexLock lock(all.mutex);
  if (const auto known = all.byGpu.find(gpu.gpu()); known != all.byGpu.end()) return known->second;
  Status answer = probe(gpu);
  if (answer.code() == Code::kOutOfMemory) return answer;  // the next call may succeed
  if (!answer.isOk())
    answer = Status(Code::kNotSupported,
                    "fabric handles cannot be used on cuda:" + std::to_string(gpu.gpu()) + ": " +
                        std::string(answer.message()));
  return all.byGpu.emplace(gpu.gpu(), std::move(answer)).first->second;
}

Status tryFabric(const cuda::Gpus& gpus) {
  Status why;
  for (const auto& gpu : gpus) {
    Status tried = tryFabric(*gpu);
    if (tried.isOk()) return tried;
    if (why.isOk()) why = std::move(tried);
  }
  return why;
}

}  // namespace peerlane
