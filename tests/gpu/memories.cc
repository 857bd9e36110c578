// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/memories.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>

#include "peerlane/os/cuda_driver.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kOffset = 1000;  // where one is wanted that is aligned to 8 bytes and to no more

void mustDriver(CUresult result, const char* what) {
  must(cuda::check(result, what), what);
}

std::byte* fromPool(Device device, size_t bytes) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.handleTypes = cudaMemHandleTypePosixFileDescriptor;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device.index;
  cudaMemPool_t pool = nullptr;
  mustCuda(cudaMemPoolCreate(&pool, &properties), "cudaMemPoolCreate");
  void* at = nullptr;
  mustCuda(cudaMallocFromPoolAsync(&at, bytes, pool, nullptr), "cudaMallocFromPoolAsync");
  mustCuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  return static_cast<std::byte*>(at);
}

CUmemAllocationHandleType typesOf(Export as) {
  unsigned types = 0;
  if (as == Export::kDescriptor || as == Export::kBoth)
    types |= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (as == Export::kFabric || as == Export::kBoth) types |= CU_MEM_HANDLE_TYPE_FABRIC;
  return static_cast<CUmemAllocationHandleType>(types);
}

// Not for what Context::allocate gives.
std::byte* obtain(Device device, Memory memory, size_t bytes) {
  // In pages of its own: those of a region are pinned whole, and CUDA refuses to copy from what
  // lies in such a page in part.
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  constexpr size_t kPage = 4096;
  static std::vector<std::unique_ptr<std::byte, Free>> heap;
  static std::vector<std::unique_ptr<Segment>> segments;
  void* at = nullptr;
  switch (memory) {
    case Memory::kMalloc:
    case Memory::kSmall: mustCuda(cudaMalloc(&at, bytes), "cudaMalloc"); break;
    case Memory::kOddOffset:
      mustCuda(cudaMalloc(&at, bytes + 2 * kOffset), "cudaMalloc");
      return static_cast<std::byte*>(at) + kOffset;
    case Memory::kChunks:
      segments.push_back(
          std::make_unique<Segment>(device.index, chunks((bytes + kOffset) / (2 << 20) + 1)));
      return segments.back()->data() + kOffset;
    case Memory::kPool: return fromPool(device, bytes);
    case Memory::kFabric:
    case Memory::kPrivate:
      segments.push_back(
          std::make_unique<Segment>(device.index, chunks(1, (bytes / (2 << 20) + 1) * (2 << 20)),
                                    memory == Memory::kFabric ? Export::kFabric : Export::kNone));
      return segments.back()->data();
    case Memory::kMemfd: at = mapMemfd(bytes); break;
    case Memory::kPinned:
      mustCuda(cudaHostAlloc(&at, bytes, cudaHostAllocPortable), "cudaHostAlloc");
      break;
    case Memory::kHeap:
      at = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
      heap.emplace_back(static_cast<std::byte*>(at));
      break;
    case Memory::kVmm:
    case Memory::kShared: break;
  }
  return static_cast<std::byte*>(at);
}

}  // namespace

std::string nameOf(Memory memory) {
  switch (memory) {
    case Memory::kVmm: return "Vmm";
    case Memory::kMalloc: return "CudaMalloc";
    case Memory::kOddOffset: return "OddOffset";
    case Memory::kSmall: return "SmallAllocation";
    case Memory::kChunks: return "Chunks";
    case Memory::kPool: return "Pool";
    case Memory::kFabric: return "Fabric";
    case Memory::kPrivate: return "Private";
    case Memory::kShared: return "Shared";
    case Memory::kMemfd: return "Memfd";
    case Memory::kPinned: return "Pinned";
    case Memory::kHeap: return "Heap";
  }
  return "?";
}

std::byte* mapMemfd(size_t bytes) {
  const int fd = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0)
    die("memfd", Status(Code::kSystem, std::strerror(errno)));
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (at == MAP_FAILED) die("mmap", Status(Code::kSystem, std::strerror(errno)));
  return static_cast<std::byte*>(at);
}

Region makeRegion(Context& context, Device device, Memory memory, size_t bytes) {
  if (memory == Memory::kVmm) return must(context.allocate(bytes, {.device = device}), "allocate");
  if (memory == Memory::kShared) return must(context.allocate(bytes), "allocate");
  return must(
      context.registerRegion(obtain(device, memory, bytes), bytes, Access::kRemoteReadWrite),
      "registerRegion");
}

std::vector<size_t> chunks(size_t count, size_t bytes) {
  return std::vector<size_t>(count, bytes);
}

Segment::Segment(int gpu, std::vector<size_t> sizes, Export as)
    : gpu_(gpu), sizes_(std::move(sizes)), mapped_(sizes_.size()) {
  bytes_ = std::accumulate(sizes_.begin(), sizes_.end(), size_t{0});
  mustDriver(cuda::api().cuMemAddressReserve(&base_, bytes_, 0, 0, 0), "cuMemAddressReserve");
  size_t at = 0;
  for (size_t i = 0; i < sizes_.size(); at += sizes_[i++]) {
    offsets_.push_back(at);
    map(i, as);
  }
}

Segment::~Segment() {
  for (size_t i = 0; i < sizes_.size(); ++i) unmap(i);
  mustDriver(cuda::api().cuMemAddressFree(base_, bytes_), "cuMemAddressFree");
}

void Segment::map(size_t i, Export as) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu_};
  properties.requestedHandleTypes = typesOf(as);
  CUmemGenericAllocationHandle handle = 0;
  mustDriver(cuda::api().cuMemCreate(&handle, sizes_[i], &properties, 0), "cuMemCreate");
  mustDriver(cuda::api().cuMemMap(base_ + offsets_[i], sizes_[i], 0, handle, 0), "cuMemMap");
  mustDriver(cuda::api().cuMemRelease(handle), "cuMemRelease");
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  mustDriver(cuda::api().cuMemSetAccess(base_ + offsets_[i], sizes_[i], &access, 1),
             "cuMemSetAccess");
  mapped_[i] = true;
}

void Segment::unmap(size_t i) {
  if (!mapped_[i]) return;
  mustDriver(cuda::api().cuMemUnmap(base_ + offsets_[i], sizes_[i]), "cuMemUnmap");
  mapped_[i] = false;
}

}  // namespace peerlane::gputest
