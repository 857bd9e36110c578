// SPDX-License-Identifier: Apache-2.0
//
// cudaMalloc and its kin, pinned host memory, IPC handles. SOFTWARE_GPU_IPC in the environment of
// who opens handles says how they fail him, as they do between PID namespaces on some machines:
// "refused", or "wrong": they lead to other memory; "refused-on-1" on one device alone.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>

#include "peerlane/core/mutex.h"
#include "tests/fake/software_gpu/software_device.h"
#include "tests/fake/software_gpu/software_error.h"
#include "tests/fake/software_gpu/software_graph.h"
#include "tests/fake/software_gpu/software_queue.h"
#include "tests/fake/software_gpu/software_stream.h"

namespace peerlane::softgpu {
namespace {

static_assert(sizeof(HandleContent) == sizeof(cudaIpcMemHandle_t));

struct Opened {
  Mutex mutex;
  // By name and the device that opened it.
  std::map<std::pair<std::string, int>, AllocationPtr> byName PEERLANE_GUARDED_BY(mutex);
};
Opened& opened() {
  static auto* const only = new Opened;
  return *only;
}

bool ipcFails(const char* how) {
  const char* asked = std::getenv("SOFTWARE_GPU_IPC");
  if (asked == nullptr) return false;
  const std::string here = std::string(how) + "-on-" + std::to_string(currentDevice());
  return std::strcmp(asked, how) == 0 || here == asked;
}

cudaError_t begin() {
  if (deviceCount() == 0) return cudaErrorInsufficientDriver;
  if (isInCallback()) return cudaErrorNotPermitted;
  if (const cudaError_t refused = mayCallUnsafely()) return refused;
  return healthOf(currentDevice());
}

size_t wholePages(size_t bytes) {
  return (bytes + 4095) / 4096 * 4096;
}

cudaError_t allocate(void** pointer, size_t bytes, MemoryKind kind) {
  if (const cudaError_t refused = begin()) return refused;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  const auto physical = makePhysical(currentDevice(), bytes, 0, error);
  if (physical == nullptr) return error;
  const AllocationPtr made = mapPhysical(physical, kind);
  if (made == nullptr) return cudaErrorMemoryAllocation;
  *pointer = made->at();
  return cudaSuccess;
}

cudaError_t allocateHost(void** pointer, size_t bytes, unsigned flags) {
  if (const cudaError_t refused = begin()) return refused;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  void* at =
      mmap(nullptr, wholePages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return cudaErrorMemoryAllocation;
  std::memset(at, 0xA5, std::min<size_t>(bytes, 65536));
  (void)enterHost(at, bytes, MemoryKind::kHost, flags);
  *pointer = at;
  return cudaSuccess;
}

cudaError_t openHandle(void** pointer, const cudaIpcMemHandle_t& handle) {
  if (const cudaError_t refused = begin()) return refused;
  HandleContent content;
  std::memcpy(&content, &handle, sizeof(content));
  content.name[sizeof(content.name) - 1] = 0;
  // As the real one refuses memory of the caller's own process.
  if (content.pid == ownPid()) return cudaErrorDeviceUninitialized;
  if (ipcFails("refused")) return cudaErrorMapBufferObjectFailed;
  const int device = currentDevice();
  Opened& all = opened();
  const MutexLock lock(all.mutex);
  AllocationPtr& entry = all.byName[{content.name, device}];
  if (entry == nullptr) {
    auto physical = followHandle(content);
    if (physical == nullptr) {
      all.byName.erase({content.name, device});
      return cudaErrorInvalidValue;
    }
    if (ipcFails("wrong")) {
      cudaError_t error = cudaSuccess;
      auto other = makePhysical(physical->device, physical->bytes, 0, error);
      if (other == nullptr) return error;
      other->name = physical->name;
      physical = std::move(other);
    }
    AllocationPtr made = mapPhysical(physical, MemoryKind::kOpened);
    if (made == nullptr) return cudaErrorMemoryAllocation;
    made->flags = static_cast<unsigned>(device);
    entry = std::move(made);
  }
  ++entry->opens;
  *pointer = entry->at();
  return cudaSuccess;
}

cudaError_t closeHandle(void* pointer) {
  if (const cudaError_t refused = begin()) return refused;
  const AllocationPtr found = find(pointer);
  if (found == nullptr || found->kind != MemoryKind::kOpened || found->at() != pointer)
    return cudaErrorInvalidValue;
  waitForDevice(static_cast<int>(found->flags));
  Opened& all = opened();
  const MutexLock lock(all.mutex);
  if (--found->opens > 0) return cudaSuccess;
  all.byName.erase({found->physical->name, static_cast<int>(found->flags)});
  forget(*found);
  unmap(*found);
  return cudaSuccess;
}

}  // namespace
}  // namespace peerlane::softgpu

using namespace peerlane::softgpu;

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (const cudaError_t refused = begin()) return note(refused);
  HardwareQueue::waitForTheStopped();
  return note(allocate(pointer, bytes, MemoryKind::kDevice));
}

cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned /*flags*/) {
  return note(allocate(pointer, bytes, MemoryKind::kManaged));
}

cudaError_t cudaFree(void* pointer) {
  if (const cudaError_t refused = begin()) return note(refused);
  if (pointer == nullptr) return cudaSuccess;
  const AllocationPtr found = find(pointer);
  if (found == nullptr || found->at() != pointer) return note(cudaErrorInvalidValue);
  if (found->kind == MemoryKind::kPool) {
    freeOfPool(found);
    return note(healthOf(found->device));
  }
  if (found->kind != MemoryKind::kDevice && found->kind != MemoryKind::kManaged)
    return note(cudaErrorInvalidValue);
  waitForDevice(found->device);
  forget(*found);
  unmap(*found);
  return note(healthOf(found->device));
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  if (const cudaError_t refused = begin()) return note(refused);
  HardwareQueue::waitForTheStopped();
  return note(allocateHost(pointer, bytes, flags));
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  if (const cudaError_t refused = begin()) return note(refused);
  HardwareQueue::waitForTheStopped();
  return note(allocateHost(pointer, bytes, 0));
}

cudaError_t cudaFreeHost(void* pointer) {
  if (const cudaError_t refused = begin()) return note(refused);
  if (pointer == nullptr) return cudaSuccess;
  const AllocationPtr found = find(pointer);
  if (found == nullptr || found->kind != MemoryKind::kHost || found->at() != pointer)
    return note(cudaErrorInvalidValue);
  waitForDevice(-1);
  forget(*found);
  unmap(*found);
  return cudaSuccess;
}

namespace {

// Of the page at `address`, as the system sees it.
bool isWritable(uintptr_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long long begin = 0, end = 0;
    char rights[5] = "";
    if (std::sscanf(line.c_str(), "%llx-%llx %4s", &begin, &end, rights) == 3 && begin <= address &&
        address < end)
      return rights[1] == 'w';
  }
  return false;
}

}  // namespace

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
  if (const cudaError_t refused = begin()) return note(refused);
  HardwareQueue::waitForTheStopped();
  if (pointer == nullptr || bytes == 0) return note(cudaErrorInvalidValue);
  const auto first = reinterpret_cast<uintptr_t>(pointer) & ~uintptr_t{4095};
  const size_t pages = wholePages(reinterpret_cast<uintptr_t>(pointer) + bytes - first);
  // Something must lie there.
  if (msync(reinterpret_cast<void*>(first), pages, MS_ASYNC) != 0)
    return note(cudaErrorInvalidValue);
  // Pages that are mapped for reading alone are pinned for that alone.
  if ((flags & cudaHostRegisterReadOnly) == 0 && !isWritable(first))
    return note(cudaErrorInvalidValue);
  if (const AllocationPtr found = find(pointer); found != nullptr && !found->isHost())
    return note(cudaErrorInvalidValue);
  return note(enterHost(pointer, bytes, MemoryKind::kRegistered, flags) != nullptr
                  ? cudaSuccess
                  : cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t cudaHostUnregister(void* pointer) {
  if (const cudaError_t refused = begin()) return note(refused);
  HardwareQueue::waitForTheStopped();
  const AllocationPtr found = find(pointer);
  if (found == nullptr || found->kind != MemoryKind::kRegistered || found->at() != pointer)
    return note(cudaErrorHostMemoryNotRegistered);
  waitForDevice(-1);
  forget(*found);
  return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned /*flags*/) {
  const AllocationPtr found = find(host);
  if (found == nullptr || !found->isHost()) return note(cudaErrorInvalidValue);
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaHostGetFlags(unsigned* flags, void* host) {
  const AllocationPtr found = find(host);
  if (found == nullptr || !found->isHost()) return note(cudaErrorInvalidValue);
  *flags = found->flags;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  if (deviceCount() == 0) return note(cudaErrorInsufficientDriver);
  *total = kDeviceBytes;
  *available = kDeviceBytes - usedBytes(currentDevice());
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  if (deviceCount() == 0) return note(cudaErrorInsufficientDriver);
  *attributes = {};
  attributes->device = -1;
  const AllocationPtr found = find(pointer);
  if (found == nullptr) {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->hostPointer = const_cast<void*>(pointer);
    return cudaSuccess;
  }
  attributes->device = found->device;
  attributes->devicePointer = const_cast<void*>(pointer);
  attributes->hostPointer = found->isHost() ? const_cast<void*>(pointer) : nullptr;
  attributes->type = found->isHost()                       ? cudaMemoryTypeHost
                     : found->kind == MemoryKind::kManaged ? cudaMemoryTypeManaged
                                                           : cudaMemoryTypeDevice;
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  if (deviceCount() == 0) return note(cudaErrorInsufficientDriver);
  const AllocationPtr found = find(pointer);
  if (found == nullptr || found->kind != MemoryKind::kDevice) return note(cudaErrorInvalidValue);
  HandleContent content{};
  if (!makeHandle(*found->physical, content)) return note(cudaErrorInvalidValue);
  std::memcpy(handle, &content, sizeof(content));
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned flags) {
  if ((flags & cudaIpcMemLazyEnablePeerAccess) == 0) return note(cudaErrorInvalidValue);
  return note(openHandle(pointer, handle));
}

cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  return note(closeHandle(pointer));
}

}  // extern "C"
