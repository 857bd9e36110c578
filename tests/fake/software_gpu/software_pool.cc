// SPDX-License-Identifier: Apache-2.0
//
// Memory in the order of a stream: cudaMallocAsync and pools, which travel to other processes as
// descriptors, and then their memory by export data. Memory is there as soon as it is asked for;
// it goes when the stream comes to its end. Whoever imported some must free it before its owner
// does: an owner that is the first fails the device.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "peerlane/core/mutex.h"
#include "tests/fake/software_gpu/software_device.h"
#include "tests/fake/software_gpu/software_driver.h"
#include "tests/fake/software_gpu/software_error.h"
#include "tests/fake/software_gpu/software_graph.h"
#include "tests/fake/software_gpu/software_stream.h"

namespace peerlane::softgpu {
namespace {

using PoolPtr = std::shared_ptr<Pool>;
constexpr char kPoolPrefix[] = "software-gpu-pool:";

struct Pools {
  Mutex mutex;
  std::map<Pool*, PoolPtr> known PEERLANE_GUARDED_BY(mutex);
  std::array<PoolPtr, kMostDevices> standard PEERLANE_GUARDED_BY(mutex);
  std::array<Pool*, kMostDevices> chosen PEERLANE_GUARDED_BY(mutex){};
};
Pools& pools() {
  static auto* const only = new Pools;
  return *only;
}

struct Imports {
  Mutex mutex;
  // By pool and place.
  std::map<std::pair<std::string, uint64_t>, std::weak_ptr<Allocation>> known
      PEERLANE_GUARDED_BY(mutex);
};
Imports& imports() {
  static auto* const only = new Imports;
  return *only;
}

// What is in export data: the pool, and where in it. No two exports of one allocation are alike.
struct PointerContent {
  char name[40];
  uint64_t number;
  uint64_t offset;
  uint64_t bytes;
};
static_assert(sizeof(PointerContent) == sizeof(cudaMemPoolPtrExportData));

// To import more at once ends the process inside the driver (said of driver 580).
constexpr uint64_t kMostImported = uint64_t{5248} << 20;

// Imports hold a lock on their part of the pool's file, of an opening of their own: it goes with
// them, and with their process.
struct flock partOf(const Physical& physical, short type) {
  struct flock part {};
  part.l_type = type;
  part.l_whence = SEEK_SET;
  part.l_start = physical.offset;
  part.l_len = static_cast<off_t>(physical.mappedBytes);
  return part;
}

bool isImportedElsewhere(const Physical& physical) {
  struct flock part = partOf(physical, F_WRLCK);
  return fcntl(physical.fd, F_OFD_GETLK, &part) == 0 && part.l_type != F_UNLCK;
}

// Null: no room. Begins behind the first granule, which nobody gets.
std::shared_ptr<Physical> takeFrom(Pool& pool, size_t bytes) {
  auto made = std::make_shared<Physical>();
  made->device = pool.device;
  made->bytes = bytes;
  made->mappedBytes = (bytes + 4095) / 4096 * 4096;
  made->name = pool.name;
  const size_t granules = (bytes + kGranule - 1) / kGranule * kGranule;
  if (!takeRoom(pool.device, made->mappedBytes)) return nullptr;
  made->isOurs = true;
  made->offset = pool.end.fetch_add(static_cast<off_t>(granules)) + static_cast<off_t>(kGranule);
  made->fd = fcntl(pool.fd, F_DUPFD_CLOEXEC, 0);
  // Grows the file where it ends before.
  const std::string garbage(std::min<size_t>(made->mappedBytes, 65536), static_cast<char>(0xA5));
  const off_t last = made->offset + static_cast<off_t>(made->mappedBytes) - 1;
  if (made->fd < 0 || pwrite(made->fd, "", 1, last) != 1 ||
      pwrite(made->fd, garbage.data(), garbage.size(), made->offset) < 0)
    return nullptr;
  return made;
}

void freeNow(const AllocationPtr& found) {
  if (found->physical->isOurs && found->pool->fd >= 0 && isImportedElsewhere(*found->physical))
    failDevice(found->device, "memory of a pool was freed while another process has it imported");
  forget(*found);
  unmap(*found);
  if (found->physical->isOurs) return;
  struct flock part = partOf(*found->physical, F_UNLCK);
  (void)fcntl(found->physical->fd, F_OFD_SETLK, &part);
}

cudaMemPool_t handleOf(const PoolPtr& pool) {
  return reinterpret_cast<cudaMemPool_t>(pool.get());
}

PoolPtr findPool(cudaMemPool_t handle) {
  Pools& all = pools();
  const MutexLock lock(all.mutex);
  const auto found = all.known.find(reinterpret_cast<Pool*>(handle));
  return found == all.known.end() ? nullptr : found->second;
}

PoolPtr standardPool(int device) {
  Pools& all = pools();
  const MutexLock lock(all.mutex);
  PoolPtr& pool = all.standard[static_cast<size_t>(device)];
  if (pool == nullptr) {
    pool = std::make_shared<Pool>();
    pool->device = device;
    all.known.emplace(pool.get(), pool);
  }
  return pool;
}

PoolPtr chosenPool(int device) {
  PoolPtr standard = standardPool(device);
  Pools& all = pools();
  const MutexLock lock(all.mutex);
  const auto found = all.known.find(all.chosen[static_cast<size_t>(device)]);
  return found == all.known.end() ? standard : found->second;
}

cudaError_t allocate(void** pointer, size_t bytes, const PoolPtr& pool, cudaStream_t handle) {
  if (deviceCount() == 0) return cudaErrorInsufficientDriver;
  const StreamPtr stream = findStream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (pool == nullptr || pool->isImported) return cudaErrorInvalidValue;
  if (isCapturing(stream)) return cudaErrorNotSupported;
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  const auto physical =
      pool->fd < 0 ? makePhysical(pool->device, bytes, 0, error) : takeFrom(*pool, bytes);
  if (physical == nullptr) return cudaErrorMemoryAllocation;
  const AllocationPtr made = mapPhysical(physical, MemoryKind::kPool, nullptr, pool);
  if (made == nullptr) return cudaErrorMemoryAllocation;
  *pointer = made->at();
  return cudaSuccess;
}

cudaError_t release(void* pointer, cudaStream_t handle) {
  if (deviceCount() == 0) return cudaErrorInsufficientDriver;
  const StreamPtr stream = findStream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  const AllocationPtr found = find(pointer);
  if (found == nullptr || found->at() != pointer || found->kind != MemoryKind::kPool)
    return cudaErrorInvalidValue;
  if (isCapturing(stream)) return cudaErrorNotSupported;
  return submit(stream, NodeKind::kFree, [found] { freeNow(found); });
}

}  // namespace

void freeOfPool(const AllocationPtr& allocation) {
  freeNow(allocation);
}

}  // namespace peerlane::softgpu

using namespace peerlane::softgpu;
using peerlane::MutexLock;

extern "C" {

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  if (deviceCount() == 0) return note(cudaErrorInsufficientDriver);
  const StreamPtr found = findStream(stream);
  if (found == nullptr) return note(cudaErrorInvalidResourceHandle);
  return note(allocate(pointer, bytes, chosenPool(found->device()), stream));
}

cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  return note(allocate(pointer, bytes, findPool(pool), stream));
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  return note(release(pointer, stream));
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  if (!isDevice(device)) return note(cudaErrorInvalidDevice);
  *pool = handleOf(standardPool(device));
  return cudaSuccess;
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  if (!isDevice(device)) return note(cudaErrorInvalidDevice);
  *pool = handleOf(chosenPool(device));
  return cudaSuccess;
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  const PoolPtr found = findPool(pool);
  if (!isDevice(device) || found == nullptr || found->device != device)
    return note(cudaErrorInvalidValue);
  Pools& all = pools();
  const MutexLock lock(all.mutex);
  all.chosen[static_cast<size_t>(device)] = found.get();
  return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  if (!isDevice(properties->location.id) || properties->location.type != cudaMemLocationTypeDevice)
    return note(cudaErrorInvalidValue);
  const auto types = static_cast<unsigned>(properties->handleTypes);
  if ((types & ~unsigned{cudaMemHandleTypePosixFileDescriptor}) != 0)
    return note(cudaErrorNotSupported);
  auto made = std::make_shared<Pool>();
  made->device = properties->location.id;
  made->handleTypes = types;
  if (types != 0)
    made->fd = makeNamedFile(kPoolPrefix + std::to_string(made->device) + ":", made->name);
  if (types != 0 && made->fd < 0) return note(cudaErrorMemoryAllocation);
  Pools& all = pools();
  const MutexLock lock(all.mutex);
  *pool = handleOf(made);
  all.known.emplace(made.get(), std::move(made));
  return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  Pools& all = pools();
  const MutexLock lock(all.mutex);
  const auto found = all.known.find(reinterpret_cast<Pool*>(handle));
  if (found == all.known.end() ||
      found->second == all.standard[static_cast<size_t>(found->second->device)])
    return note(cudaErrorInvalidValue);
  all.known.erase(found);  // its memory stays until it is freed
  return cudaSuccess;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t /*bytes*/) {
  return note(findPool(pool) == nullptr ? cudaErrorInvalidValue : cudaSuccess);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr /*attribute*/,
                                    void* /*value*/) {
  return note(findPool(pool) == nullptr ? cudaErrorInvalidValue : cudaSuccess);
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  if (findPool(pool) == nullptr) return note(cudaErrorInvalidValue);
  std::memset(value, 0,
              attribute < cudaMemPoolAttrReleaseThreshold ? sizeof(int) : sizeof(uint64_t));
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t handle, const cudaMemAccessDesc* descriptions,
                                 size_t count) {
  const PoolPtr pool = findPool(handle);
  if (pool == nullptr) return note(cudaErrorInvalidValue);
  for (size_t i = 0; i < count; ++i) {
    const int device = descriptions[i].location.id;
    if (descriptions[i].location.type != cudaMemLocationTypeDevice || !isDevice(device))
      return note(cudaErrorInvalidDevice);
    if (descriptions[i].flags == cudaMemAccessFlagsProtReadWrite)
      pool->access |= 1u << device;
    else if (device == pool->device)
      return note(cudaErrorInvalidValue);  // the pool's own device keeps it
    else
      pool->access &= ~(1u << device);
  }
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t handle,
                                 cudaMemLocation* location) {
  const PoolPtr pool = findPool(handle);
  if (pool == nullptr || !isDevice(location->id)) return note(cudaErrorInvalidValue);
  const bool can = location->id == pool->device || (pool->access & (1u << location->id)) != 0;
  *flags = can ? cudaMemAccessFlagsProtReadWrite : cudaMemAccessFlagsProtNone;
  return cudaSuccess;
}

cudaError_t cudaMemPoolExportToShareableHandle(void* shareable, cudaMemPool_t handle,
                                               cudaMemAllocationHandleType type,
                                               unsigned /*flags*/) {
  const PoolPtr pool = findPool(handle);
  if (pool == nullptr || pool->isImported || type != cudaMemHandleTypePosixFileDescriptor ||
      (pool->handleTypes & unsigned{type}) == 0)
    return note(cudaErrorInvalidValue);
  const int fd = fcntl(pool->fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return note(cudaErrorMemoryAllocation);
  pool->isExported = true;
  *static_cast<int*>(shareable) = fd;
  return cudaSuccess;
}

cudaError_t cudaMemPoolImportFromShareableHandle(cudaMemPool_t* handle, void* shareable,
                                                 cudaMemAllocationHandleType type,
                                                 unsigned /*flags*/) {
  if (type != cudaMemHandleTypePosixFileDescriptor) return note(cudaErrorInvalidValue);
  const int given = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  auto made = std::make_shared<Pool>();
  made->isImported = true;
  made->fd = fcntl(given, F_DUPFD_CLOEXEC, 0);
  made->name = made->fd < 0 ? std::string() : nameOfFile(made->fd);
  if (!made->name.starts_with(kPoolPrefix)) return note(cudaErrorInvalidValue);
  made->device = std::atoi(made->name.c_str() + sizeof(kPoolPrefix) - 1);
  if (!isDevice(made->device)) return note(cudaErrorInvalidDevice);
  Pools& all = pools();
  const MutexLock lock(all.mutex);
  *handle = handleOf(made);
  all.known.emplace(made.get(), std::move(made));
  return cudaSuccess;
}

// As seen on the real one: not before the pool itself was exported.
cudaError_t cudaMemPoolExportPointer(cudaMemPoolPtrExportData* data, void* pointer) {
  const AllocationPtr found = find(pointer);
  if (found == nullptr || found->at() != pointer || found->kind != MemoryKind::kPool ||
      found->pool->isImported || !found->pool->isExported)
    return note(cudaErrorInvalidValue);
  static std::atomic<uint64_t> exports{0};
  PointerContent content{
      {}, ++exports, static_cast<uint64_t>(found->physical->offset), found->physical->bytes};
  const std::string& name = found->pool->name;
  if (name.size() >= sizeof(content.name)) return note(cudaErrorInvalidValue);
  std::memcpy(content.name, name.data(), name.size());
  std::memcpy(data, &content, sizeof(content));
  return cudaSuccess;
}

cudaError_t cudaMemPoolImportPointer(void** pointer, cudaMemPool_t handle,
                                     cudaMemPoolPtrExportData* data) {
  const PoolPtr pool = findPool(handle);
  if (pool == nullptr || !pool->isImported) return note(cudaErrorInvalidValue);
  PointerContent content;
  std::memcpy(&content, data, sizeof(content));
  content.name[sizeof(content.name) - 1] = 0;
  if (pool->name != content.name) return note(cudaErrorInvalidValue);
  if (content.bytes > kMostImported) {
    std::fprintf(stderr, "software GPU: the driver ends here, importing %llu bytes of a pool\n",
                 static_cast<unsigned long long>(content.bytes));
    std::abort();
  }
  Imports& all = imports();
  const MutexLock lock(all.mutex);
  std::weak_ptr<Allocation>& known = all.known[{pool->name, content.offset}];
  // As the real one, which does not count: the first free takes it from everybody.
  if (const AllocationPtr same = known.lock(); same != nullptr && find(same->at()) == same) {
    *pointer = same->at();
    return cudaSuccess;
  }
  auto physical = std::make_shared<Physical>();
  physical->device = pool->device;
  physical->offset = static_cast<off_t>(content.offset);
  physical->bytes = content.bytes;
  physical->mappedBytes = (content.bytes + 4095) / 4096 * 4096;
  physical->name = pool->name;
  physical->fd = open(("/proc/self/fd/" + std::to_string(pool->fd)).c_str(), O_RDWR | O_CLOEXEC);
  struct flock part = partOf(*physical, F_RDLCK);
  if (physical->fd < 0 || fcntl(physical->fd, F_OFD_SETLK, &part) != 0)
    return note(cudaErrorInvalidValue);
  const AllocationPtr made = mapPhysical(physical, MemoryKind::kPool, nullptr, pool);
  if (made == nullptr) return note(cudaErrorMemoryAllocation);
  known = made;
  *pointer = made->at();
  return cudaSuccess;
}

// --- The driver's, which are the same ---

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  return toDriver(cudaDeviceGetDefaultMemPool(pool, device));
}

CUresult cuMemPoolExportToShareableHandle(void* shareable, CUmemoryPool pool,
                                          CUmemAllocationHandleType type,
                                          unsigned long long flags) {
  return toDriver(cudaMemPoolExportToShareableHandle(shareable, pool,
                                                     static_cast<cudaMemAllocationHandleType>(type),
                                                     static_cast<unsigned>(flags)));
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* shareable,
                                            CUmemAllocationHandleType type,
                                            unsigned long long flags) {
  return toDriver(cudaMemPoolImportFromShareableHandle(
      pool, shareable, static_cast<cudaMemAllocationHandleType>(type),
      static_cast<unsigned>(flags)));
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* data, CUdeviceptr pointer) {
  return toDriver(cudaMemPoolExportPointer(reinterpret_cast<cudaMemPoolPtrExportData*>(data),
                                           reinterpret_cast<void*>(pointer)));
}

CUresult cuMemPoolImportPointer(CUdeviceptr* pointer, CUmemoryPool pool,
                                CUmemPoolPtrExportData* data) {
  void* found = nullptr;
  const cudaError_t result =
      cudaMemPoolImportPointer(&found, pool, reinterpret_cast<cudaMemPoolPtrExportData*>(data));
  *pointer = reinterpret_cast<CUdeviceptr>(found);
  return toDriver(result);
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* descriptions, size_t count) {
  return toDriver(
      cudaMemPoolSetAccess(pool, reinterpret_cast<const cudaMemAccessDesc*>(descriptions), count));
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool pool, CUmemLocation* location) {
  return toDriver(cudaMemPoolGetAccess(reinterpret_cast<cudaMemAccessFlags*>(flags), pool,
                                       reinterpret_cast<cudaMemLocation*>(location)));
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  return toDriver(cudaMemPoolDestroy(pool));
}

CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream stream) {
  void* made = nullptr;
  const cudaError_t result = cudaMallocAsync(&made, bytes, stream);
  *pointer = reinterpret_cast<CUdeviceptr>(made);
  return toDriver(result);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  return toDriver(cudaFreeAsync(reinterpret_cast<void*>(pointer), stream));
}

}  // extern "C"
