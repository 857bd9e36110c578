// SPDX-License-Identifier: Apache-2.0
//
// Virtual memory management: physical allocations, reservations of addresses, and mappings of the
// one into the other. None of these calls waits for a device.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <vector>

#include "peerlane/core/mutex.h"
#include "tests/fake/software_gpu/software_device.h"
#include "tests/fake/software_gpu/software_driver.h"
#include "tests/fake/software_gpu/software_error.h"

namespace peerlane::softgpu {
namespace {

struct Handle {
  std::shared_ptr<Physical> physical;
  int references = 0;
};

struct Mappings {
  Mutex mutex;
  uint64_t lastHandle PEERLANE_GUARDED_BY(mutex) = 0;
  std::map<CUmemGenericAllocationHandle, Handle> handles PEERLANE_GUARDED_BY(mutex);
  std::map<uintptr_t, size_t> reserved PEERLANE_GUARDED_BY(mutex);
};
Mappings& mappings() {
  static auto* const only = new Mappings;
  return *only;
}

CUmemGenericAllocationHandle addHandle(Mappings& all, std::shared_ptr<Physical> physical)
    PEERLANE_REQUIRES(all.mutex) {
  for (auto& [handle, entry] : all.handles)
    if (entry.physical == physical) {
      ++entry.references;
      return handle;
    }
  all.handles[++all.lastHandle] = {std::move(physical), 1};
  return all.lastHandle;
}

bool isReserved(const Mappings& all, uintptr_t address, size_t bytes) PEERLANE_REQUIRES(all.mutex) {
  auto next = all.reserved.upper_bound(address);
  if (next == all.reserved.begin()) return false;
  const auto& [base, size] = *std::prev(next);
  return address - base < size && bytes <= size - (address - base);
}

// The mappings that make up a range; empty when they do not.
std::vector<AllocationPtr> mappedIn(CUdeviceptr address, size_t bytes) {
  std::vector<AllocationPtr> all;
  for (size_t done = 0; done < bytes;) {
    AllocationPtr found = find(reinterpret_cast<const void*>(address + done));
    if (found == nullptr || found->kind != MemoryKind::kMapped || found->base != address + done ||
        found->bytes > bytes - done)
      return {};
    done += found->bytes;
    all.push_back(std::move(found));
  }
  return all;
}

bool isOnDevice(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE && isDevice(location.id);
}

CUresult importFabric(const void* shareable, std::shared_ptr<Physical>& physical) {
  if (fabricFails("absent")) return CUDA_ERROR_NOT_SUPPORTED;
  if (fabricFails("no-channel")) return CUDA_ERROR_NOT_PERMITTED;
  HandleContent content;
  std::memcpy(&content, shareable, sizeof(content));
  physical = followHandle(content);
  return physical == nullptr || (physical->handleTypes & CU_MEM_HANDLE_TYPE_FABRIC) == 0
             ? CUDA_ERROR_INVALID_VALUE
             : CUDA_SUCCESS;
}

CUresult importDescriptor(void* shareable, std::shared_ptr<Physical>& physical) {
  const int given = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  const int fd = fcntl(given, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_INVALID_VALUE;
  physical = adoptPhysical(fd);
  constexpr unsigned kTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return physical == nullptr || (physical->handleTypes & kTypes) == 0 || !isDevice(physical->device)
             ? CUDA_ERROR_INVALID_DEVICE
             : CUDA_SUCCESS;
}

}  // namespace
}  // namespace peerlane::softgpu

using namespace peerlane::softgpu;
using peerlane::MutexLock;

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags /*option*/) {
  if (!isOnDevice(properties->location)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = kGranule;
  return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long /*flags*/) {
  if (bytes == 0 || bytes % kGranule != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!isOnDevice(properties->location)) return CUDA_ERROR_INVALID_DEVICE;
  const auto types = static_cast<unsigned>(properties->requestedHandleTypes);
  constexpr unsigned kFabric = CU_MEM_HANDLE_TYPE_FABRIC;
  if ((types & ~(kFabric | unsigned{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR})) != 0 ||
      ((types & kFabric) != 0 && fabricFails("absent")))
    return CUDA_ERROR_NOT_SUPPORTED;
  if ((types & kFabric) != 0 && fabricFails("no-channel")) return CUDA_ERROR_NOT_PERMITTED;
  cudaError_t error = cudaSuccess;
  auto physical = makePhysical(properties->location.id, bytes, types, error);
  if (physical == nullptr) return toDriver(error);
  Mappings& all = mappings();
  const MutexLock lock(all.mutex);
  *handle = addHandle(all, std::move(physical));
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  Mappings& all = mappings();
  const MutexLock lock(all.mutex);
  const auto found = all.handles.find(handle);
  if (found == all.handles.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.references == 0) all.handles.erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t /*alignment*/,
                             CUdeviceptr /*wish*/, unsigned long long /*flags*/) {
  if (bytes == 0 || bytes % kGranule != 0) return CUDA_ERROR_INVALID_VALUE;
  void* at = mmap(nullptr, bytes + kGranule, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                  -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  // On whole granules; what is over on both sides is given back.
  const auto first = reinterpret_cast<uintptr_t>(at);
  const uintptr_t base = (first + kGranule - 1) / kGranule * kGranule;
  if (base != first) munmap(at, base - first);
  if (base != first + kGranule)
    munmap(reinterpret_cast<void*>(base + bytes), first + kGranule - base);
  Mappings& all = mappings();
  const MutexLock lock(all.mutex);
  all.reserved[base] = bytes;
  *address = base;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  Mappings& all = mappings();
  const MutexLock lock(all.mutex);
  const auto found = all.reserved.find(address);
  if (found == all.reserved.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  for (size_t at = 0; at < bytes; at += kGranule)
    if (find(reinterpret_cast<const void*>(address + at)) != nullptr)
      return CUDA_ERROR_INVALID_VALUE;  // still mapped
  all.reserved.erase(found);
  munmap(reinterpret_cast<void*>(address), bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long /*flags*/) {
  Mappings& all = mappings();
  const MutexLock lock(all.mutex);
  const auto found = all.handles.find(handle);
  if (found == all.handles.end() || offset != 0 || bytes != found->second.physical->bytes ||
      address % kGranule != 0 || !isReserved(all, address, bytes) ||
      find(reinterpret_cast<const void*>(address)) != nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  return mapPhysical(found->second.physical, MemoryKind::kMapped,
                     reinterpret_cast<void*>(address)) == nullptr
             ? CUDA_ERROR_OUT_OF_MEMORY
             : CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  const auto parts = mappedIn(address, bytes);
  if (parts.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (const AllocationPtr& part : parts) {
    forget(*part);
    (void)mmap(part->at(), part->mappedBytes, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* descriptions,
                        size_t count) {
  const auto parts = mappedIn(address, bytes);
  if (parts.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) {
    if (!isOnDevice(descriptions[i].location)) return CUDA_ERROR_INVALID_DEVICE;
    const uint32_t bit = 1u << descriptions[i].location.id;
    for (const AllocationPtr& part : parts) {
      if (descriptions[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        part->access |= bit;
      else
        part->access &= ~bit;
    }
  }
  return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                        CUdeviceptr address) {
  const AllocationPtr found = find(reinterpret_cast<const void*>(address));
  if (found == nullptr || !isOnDevice(*location)) return CUDA_ERROR_INVALID_VALUE;
  *flags = canReach(location->id, *found) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                          : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                CUmemGenericAllocationHandle handle) {
  Mappings& all = mappings();
  const MutexLock lock(all.mutex);
  const auto found = all.handles.find(handle);
  if (found == all.handles.end()) return CUDA_ERROR_INVALID_VALUE;
  *properties = {};
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties->location.id = found->second.physical->device;
  properties->requestedHandleTypes =
      static_cast<CUmemAllocationHandleType>(found->second.physical->handleTypes);
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  const AllocationPtr found = find(address);
  if (found == nullptr || found->kind != MemoryKind::kMapped) return CUDA_ERROR_INVALID_VALUE;
  Mappings& all = mappings();
  const MutexLock lock(all.mutex);
  *handle = addHandle(all, found->physical);
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type,
                                      unsigned long long /*flags*/) {
  Mappings& all = mappings();
  const MutexLock lock(all.mutex);
  const auto found = all.handles.find(handle);
  if (found == all.handles.end() || (found->second.physical->handleTypes & unsigned{type}) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    HandleContent content{};
    if (fabricFails("no-export") || !makeHandle(*found->second.physical, content))
      return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(shareable, &content, sizeof(content));
    return CUDA_SUCCESS;
  }
  const int fd = fcntl(found->second.physical->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(shareable) = fd;
  return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                        CUmemAllocationHandleType type) {
  std::shared_ptr<Physical> physical;
  const CUresult imported = type == CU_MEM_HANDLE_TYPE_FABRIC ? importFabric(shareable, physical)
                            : type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                ? importDescriptor(shareable, physical)
                                : CUDA_ERROR_NOT_SUPPORTED;
  if (imported != CUDA_SUCCESS) return imported;
  Mappings& all = mappings();
  const MutexLock lock(all.mutex);
  *handle = addHandle(all, std::move(physical));
  return CUDA_SUCCESS;
}

}  // extern "C"
