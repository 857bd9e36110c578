// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/copy/word_abilities.h"

#include <iterator>

#include "peerlane/os/cuda_driver.h"
#include "peerlane/os/verbs/nic_writes.h"

namespace peerlane::stream {

using cuda::api;
using cuda::check;

Result<WordAbilities> WordAbilities::of(int gpu) {
  WordAbilities found;
  found.gpu = gpu;
  const auto ask = [gpu](CUdevice_attribute attribute, bool& has) {
    int value = 0;
    const CUresult result = api().cuDeviceGetAttribute(&value, attribute, gpu);
    has = value != 0;
    return check(result, "cuDeviceGetAttribute");
  };
  PEERLANE_RETURN_IF_ERROR(ask(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, found.has64Bits));
  PEERLANE_RETURN_IF_ERROR(ask(CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, found.hasNor));
  PEERLANE_RETURN_IF_ERROR(ask(CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, found.hasFlush));
  PEERLANE_RETURN_IF_ERROR(ask(CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, found.addsToHost));
  PEERLANE_ASSIGN(const cuda::NicWrites nicWrites, cuda::nicWritesOf(gpu));
  found.ordersNicWrites = nicWrites == cuda::NicWrites::kOrdered;
  return found;
}

bool WordAbilities::addsTo(int otherGpu) const {
  if (otherGpu == gpu) return true;
  int value = 0;
  return api().cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, gpu,
                                       otherGpu) == CUDA_SUCCESS &&
         value != 0;
}

WordPlace WordPlace::of(const std::byte* address) {
  const auto pointer = reinterpret_cast<CUdeviceptr>(address);
  unsigned type = 0, isManaged = 0;
  int gpu = -1;
  CUdeviceptr seenByGpu = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
  void* values[] = {&type, &isManaged, &gpu, &seenByGpu};
  if (api().cuPointerGetAttributes(std::size(names), names, values, pointer) != CUDA_SUCCESS ||
      seenByGpu != pointer)
    return {};
  if (isManaged != 0) return {.kind = Kind::kManaged};
  if (type == CU_MEMORYTYPE_HOST) return {.kind = Kind::kPinned};
  if (type == CU_MEMORYTYPE_DEVICE) return {.kind = Kind::kGpu, .gpu = gpu};
  return {};
}

}  // namespace peerlane::stream
