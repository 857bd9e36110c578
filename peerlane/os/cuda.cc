// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/cuda.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "peerlane/os/cuda_driver.h"

namespace peerlane::cuda {
namespace {

int attribute(CUdevice_attribute which, CUdevice device) {
  int value = 0;
  return api().cuDeviceGetAttribute(&value, which, device) == CUDA_SUCCESS ? value : 0;
}

Result<GpuFacts> factsOf(int index) {
  GpuFacts facts;
  facts.index = index;
  CUdevice device = 0;
  PEERLANE_RETURN_IF_ERROR(check(api().cuDeviceGet(&device, index), "cuDeviceGet"));
  char name[256] = {};
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuDeviceGetName(name, sizeof(name), device), "cuDeviceGetName"));
  facts.name = name;
  CUuuid uuid{};
  PEERLANE_RETURN_IF_ERROR(check(api().cuDeviceGetUuid(&uuid, device), "cuDeviceGetUuid"));
  std::memcpy(facts.uuid.data(), uuid.bytes, facts.uuid.size());
  char bus[32] = {};
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuDeviceGetPCIBusId(bus, sizeof(bus), device), "cuDeviceGetPCIBusId"));
  facts.busId = bus;
  std::transform(facts.busId.begin(), facts.busId.end(), facts.busId.begin(),
                 [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c; });
  size_t bytes = 0;
  PEERLANE_RETURN_IF_ERROR(check(api().cuDeviceTotalMem(&bytes, device), "cuDeviceTotalMem"));
  facts.memoryBytes = bytes;
  facts.multiprocessors = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  facts.majorVersion = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
  facts.minorVersion = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
  facts.exportsDescriptors =
      attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, device) != 0;
  facts.fabricHandles = attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, device) != 0;
  facts.hostPointersValid =
      attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, device) != 0;
  return facts;
}

Result<int> count() {
  if (!driver().isOk()) return driver().status();
  int found = 0;
  PEERLANE_RETURN_IF_ERROR(check(api().cuDeviceGetCount(&found), "cuDeviceGetCount"));
  if (found == 0) return Status(Code::kNotSupported, "no GPU is visible to this process");
  return found;
}

// No code of this process has asked for the driver yet. To start it takes a quarter of a second.
bool isDriverLoaded() {
#ifdef PEERLANE_CUDA_LINKED
  return true;
#else
  void* const loaded = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (loaded != nullptr) (void)::dlclose(loaded);
  return loaded != nullptr;
#endif
}

}  // namespace

Result<std::vector<GpuFacts>> gpus() {
  PEERLANE_ASSIGN(const int found, count());
  std::vector<GpuFacts> all;
  for (int i = 0; i < found; ++i) {
    PEERLANE_ASSIGN(GpuFacts facts, factsOf(i));
    all.push_back(std::move(facts));
  }
  return all;
}

std::optional<int> currentGpu() {
  if (!isDriverLoaded() || !available().isOk()) return std::nullopt;
  CUcontext context = nullptr;
  CUdevice device = 0;
  if (api().cuCtxGetCurrent(&context) == CUDA_SUCCESS && context != nullptr &&
      api().cuCtxGetDevice(&device) == CUDA_SUCCESS)
    return device;
  int chosen = 0;
  unsigned flags = 0;
  int active = 0;
  if (cudaGetDevice(&chosen) != cudaSuccess) {
    (void)cudaGetLastError();
    return std::nullopt;
  }
  const bool isUsed = api().cuDeviceGet(&device, chosen) == CUDA_SUCCESS &&
                      api().cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS &&
                      active != 0;
  return isUsed ? std::optional(chosen) : std::nullopt;
}

Status available() {
  return count().status();
}

uint64_t identityOf(const void* address) {
  unsigned long long identity = 0;
  return api().cuPointerGetAttribute(&identity, CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                     reinterpret_cast<CUdeviceptr>(address)) == CUDA_SUCCESS
             ? identity
             : 0;
}

std::optional<int> gpuOf(const void* address) {
  if (!available().isOk()) return std::nullopt;
  const auto pointer = reinterpret_cast<CUdeviceptr>(address);
  unsigned type = 0;
  int gpu = -1;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* values[] = {&type, &gpu};
  const bool isKnown =
      api().cuPointerGetAttributes(std::size(names), names, values, pointer) == CUDA_SUCCESS;
  return isKnown && type == CU_MEMORYTYPE_DEVICE ? std::optional(gpu) : std::nullopt;
}

std::string versionText() {
  const auto text = [](int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
  };
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0)
    return text(CUDART_VERSION) + " (no driver)";
  return text(CUDART_VERSION) + " (driver " + text(version) + ")";
}

Result<PrimaryContext> PrimaryContext::retain(int gpu) {
  PEERLANE_ASSIGN(const int found, count());
  if (gpu < 0 || gpu >= found)
    return Status(Code::kInvalidArgument,
                  "there is no cuda:" + std::to_string(gpu) +
                      "; this process sees cuda:0 to cuda:" + std::to_string(found - 1));
  CUdevice device = 0;
  PEERLANE_RETURN_IF_ERROR(check(api().cuDeviceGet(&device, gpu), "cuDeviceGet"));
  CUcontext context = nullptr;
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain"));
  PrimaryContext held;
  held.gpu_ = gpu;
  held.context_ = context;
  return held;
}

PrimaryContext::~PrimaryContext() {
  if (context_ == nullptr) return;
  CUdevice device = 0;
  if (api().cuDeviceGet(&device, gpu_) == CUDA_SUCCESS)
    (void)api().cuDevicePrimaryCtxRelease(device);
}

// To push a context that is already current, as it mostly is, costs three times as much as to ask
// for it.
CurrentContext::CurrentContext(const PrimaryContext& context) {
  auto* const wanted = static_cast<CUcontext>(context.handle());
  CUcontext current = nullptr;
  if (api().cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == wanted) return;
  pushed_ = api().cuCtxPushCurrent(wanted) == CUDA_SUCCESS;
}

CurrentContext::~CurrentContext() {
  CUcontext ours = nullptr;
  if (pushed_) (void)api().cuCtxPopCurrent(&ours);
}

}  // namespace peerlane::cuda
