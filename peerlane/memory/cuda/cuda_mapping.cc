// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/cuda/cuda_mapping.h"

#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/core/log.h"
#include "peerlane/core/mutex.h"
#include "peerlane/memory/cuda/cuda_pools.h"
#include "peerlane/memory/cuda/cuda_reclaimer.h"
#include "peerlane/os/cuda_driver.h"

namespace peerlane {
namespace {

using cuda::api;
using cuda::check;

CUmemAllocationProp exportable(int gpu) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = gpu;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

CUmemAccessDesc accessFor(int gpu) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = gpu;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

// A VMM allocation and its place in the address space. None of these calls waits for a GPU.
class VmmMapping final : public CudaMapping {
 public:
  VmmMapping(CUdeviceptr address, size_t bytes)
      : CudaMapping(reinterpret_cast<std::byte*>(address), bytes), address_(address) {}
  ~VmmMapping() override {
    (void)api().cuMemUnmap(address_, bytes());
    (void)api().cuMemAddressFree(address_, bytes());
  }

 private:
  const CUdeviceptr address_;
};

std::vector<CUmemAccessDesc> accessForAll(
    std::span<const std::shared_ptr<const cuda::PrimaryContext>> gpus) {
  std::vector<CUmemAccessDesc> access;
  for (const auto& gpu : gpus) access.push_back(accessFor(gpu->gpu()));
  return access;
}

class VmmChunkSpace final : public ChunkSpace {
 public:
  VmmChunkSpace(CUdeviceptr address, size_t bytes, cuda::Gpus gpus)
      : address_(address), bytes_(bytes), gpus_(std::move(gpus)) {}
  ~VmmChunkSpace() override {
    for (const auto& [offset, bytes] : mapped_) (void)api().cuMemUnmap(address_ + offset, bytes);
    (void)api().cuMemAddressFree(address_, bytes_);
  }

  std::byte* data() const override { return reinterpret_cast<std::byte*>(address_); }
  Status map(uint64_t offset, std::span<const uint64_t> sizes,
             std::vector<VmmHandle> handles) override {
    const cuda::CurrentContext current(*gpus_.front());
    const size_t before = mapped_.size();
    uint64_t at = offset;
    Status status;
    for (size_t i = 0; i < handles.size() && status.isOk(); ++i) {
      status = mapOne(at, sizes[i], handles[i]);
      handles[i].fd.reset();
      at += sizes[i];
    }
    // Once for all chunks: this call costs as much as all the others together.
    const std::vector<CUmemAccessDesc> access = accessForAll(gpus_);
    if (status.isOk())
      status =
          check(api().cuMemSetAccess(address_ + offset, at - offset, access.data(), access.size()),
                "cuMemSetAccess");
    if (status.isOk()) return status;
    for (; mapped_.size() > before; mapped_.pop_back())
      (void)api().cuMemUnmap(address_ + mapped_.back().first, mapped_.back().second);
    return status;
  }

 private:
  Status mapOne(uint64_t offset, uint64_t bytes, const VmmHandle& chunk) {
    PEERLANE_ASSIGN(const CUmemGenericAllocationHandle handle, importVmm(chunk));
    Status mapped = check(api().cuMemMap(address_ + offset, bytes, 0, handle, 0), "cuMemMap");
    (void)api().cuMemRelease(handle);  // the mapping holds the memory from now on
    if (mapped.isOk()) mapped_.emplace_back(offset, bytes);
    return mapped;
  }

  const CUdeviceptr address_;
  const size_t bytes_;
  const cuda::Gpus gpus_;
  std::vector<std::pair<uint64_t, uint64_t>> mapped_;  // offset and bytes of each
};

// Takes the caller's reference on `handle`; the mapping holds the memory from then on.
Result<std::shared_ptr<CudaMapping>> place(
    CUmemGenericAllocationHandle handle, size_t bytes,
    std::span<const std::shared_ptr<const cuda::PrimaryContext>> gpus) {
  CUdeviceptr address = 0;
  Status status = check(api().cuMemAddressReserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve");
  if (status.isOk()) {
    status = check(api().cuMemMap(address, bytes, 0, handle, 0), "cuMemMap");
    if (!status.isOk()) (void)api().cuMemAddressFree(address, bytes);
  }
  (void)api().cuMemRelease(handle);
  PEERLANE_RETURN_IF_ERROR(status);
  std::shared_ptr<CudaMapping> mapping = std::make_shared<VmmMapping>(address, bytes);
  const std::vector<CUmemAccessDesc> access = accessForAll(gpus);
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuMemSetAccess(address, bytes, access.data(), access.size()), "cuMemSetAccess"));
  return mapping;
}

// Legacy handles that are open in this process. The driver opens each once per GPU, and to close
// one blocks. So a handle without users stays open here until the reclaimer closes it, and a caller
// that opens it before then uses it again.
class OpenHandles {
 public:
  struct Entry {
    std::byte* address = nullptr;
    size_t users = 0;
    bool closing = false;
  };

  static OpenHandles& instance() {
    static auto* const only = new OpenHandles;  // outlives the reclaimer's last closure
    return *only;
  }

  Result<std::byte*> open(const std::string& key, const cudaIpcMemHandle_t& handle) {
    const MutexLock lock(mutex_);
    const auto deadline = std::chrono::steady_clock::now() + kCloseTime;
    while (isClosing(key))
      if (!closed_.waitUntil(mutex_, deadline) && isClosing(key))
        return Status(Code::kUnavailable,
                      "the memory is just being let go of, which waits for the GPU; try again");
    auto found = entries_.find(key);
    if (found == entries_.end()) {
      void* address = nullptr;
      Status opened = check(cudaIpcOpenMemHandle(&address, handle, cudaIpcMemLazyEnablePeerAccess),
                            "cudaIpcOpenMemHandle");
      if (!opened.isOk()) {
        (void)cudaGetLastError();
        return opened;
      }
      found = entries_.emplace(key, Entry{static_cast<std::byte*>(address), 0}).first;
    }
    ++found->second.users;
    return found->second.address;
  }

  void close(const std::string& key, const std::shared_ptr<const cuda::PrimaryContext>& gpu) {
    {
      const MutexLock lock(mutex_);
      if (--entries_.at(key).users != 0) return;
    }
    CudaReclaimer::instance().add(gpu, [this, key] {
      ReleasableLock lock(mutex_);
      auto found = entries_.find(key);
      if (found == entries_.end() || found->second.users != 0 || found->second.closing) return;
      found->second.closing = true;
      std::byte* const address = found->second.address;
      lock.unlock();  // it may block, and others open other handles
      (void)cudaIpcCloseMemHandle(address);
      lock.lock();
      entries_.erase(key);
      closed_.notifyAll();
    });
  }

 private:
  static constexpr std::chrono::seconds kCloseTime{1};

  bool isClosing(const std::string& key) const PEERLANE_REQUIRES(mutex_) {
    const auto entry = entries_.find(key);
    return entry != entries_.end() && entry->second.closing;
  }

  Mutex mutex_;
  Condition closed_;
  std::map<std::string, Entry> entries_ PEERLANE_GUARDED_BY(mutex_);
};

class HandleMapping final : public CudaMapping {
 public:
  HandleMapping(std::byte* data, size_t bytes, std::string key,
                std::shared_ptr<const cuda::PrimaryContext> gpu)
      : CudaMapping(data, bytes), key_(std::move(key)), gpu_(std::move(gpu)) {}
  ~HandleMapping() override { OpenHandles::instance().close(key_, gpu_); }

 private:
  const std::string key_;
  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
};

}  // namespace

Result<std::shared_ptr<CudaMapping>> CudaMapping::create(size_t bytes,
                                                         const cuda::PrimaryContext& gpu) {
  const cuda::CurrentContext current(gpu);
  const CUmemAllocationProp properties = exportable(gpu.gpu());
  size_t granule = 0;
  PEERLANE_RETURN_IF_ERROR(check(
      api().cuMemGetAllocationGranularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
      "cuMemGetAllocationGranularity"));
  if (bytes > SIZE_MAX - granule)
    return Status(Code::kInvalidArgument, std::to_string(bytes) + " bytes of GPU memory");
  const size_t whole = (bytes + granule - 1) / granule * granule;
  CUmemGenericAllocationHandle handle = 0;
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuMemCreate(&handle, whole, &properties, 0), "cuMemCreate")
          .withContext(std::to_string(bytes) + " bytes on cuda:" + std::to_string(gpu.gpu())));
  PEERLANE_ASSIGN(const auto only, cuda::PrimaryContext::retainShared(gpu.gpu()));
  PEERLANE_ASSIGN(auto mapping, place(handle, whole, {&only, 1}));
  // On a stream of its own: the default stream would wait for the caller's other work.
  cudaStream_t stream = nullptr;
  PEERLANE_RETURN_IF_ERROR(
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"));
  Status zeroed = check(cudaMemsetAsync(mapping->data(), 0, whole, stream), "cudaMemsetAsync");
  if (zeroed.isOk()) zeroed = check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  (void)cudaStreamDestroy(stream);
  PEERLANE_RETURN_IF_ERROR(zeroed);
  return mapping;
}

Result<std::shared_ptr<CudaMapping>> CudaMapping::importAllocation(
    const VmmHandle& handle, size_t bytes,
    std::span<const std::shared_ptr<const cuda::PrimaryContext>> gpus) {
  const cuda::CurrentContext current(*gpus.front());
  PEERLANE_ASSIGN(const CUmemGenericAllocationHandle imported, importVmm(handle));
  return place(imported, bytes, gpus);
}

Result<std::shared_ptr<CudaMapping>> CudaMapping::importHandle(std::span<const std::byte> handle,
                                                               uint64_t identity, size_t bytes,
                                                               const cuda::PrimaryContext& gpu) {
  cudaIpcMemHandle_t raw;
  if (handle.size() != sizeof(raw))
    return Status(Code::kCorrupt, "an IPC handle of " + std::to_string(handle.size()) +
                                      " bytes; expected " + std::to_string(sizeof(raw)));
  std::memcpy(&raw, handle.data(), sizeof(raw));
  std::string key(reinterpret_cast<const char*>(handle.data()), handle.size());
  key += std::to_string(gpu.gpu()) + "/" + std::to_string(identity);
  PEERLANE_ASSIGN(auto owner, cuda::PrimaryContext::retainShared(gpu.gpu()));
  const cuda::CurrentContext current(*owner);
  PEERLANE_ASSIGN(std::byte* const address, OpenHandles::instance().open(key, raw));
  const auto mapping =
      std::make_shared<HandleMapping>(address, bytes, std::move(key), std::move(owner));
  PEERLANE_RETURN_IF_ERROR(checkImportedBytes(address, bytes));
  return std::shared_ptr<CudaMapping>(mapping);
}

Result<std::unique_ptr<ChunkSpace>> reserveForChunks(size_t bytes, cuda::Gpus gpus) {
  const cuda::CurrentContext current(*gpus.front());
  CUdeviceptr address = 0;
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuMemAddressReserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve")
          .withContext(std::to_string(bytes) + " bytes of addresses"));
  return std::unique_ptr<ChunkSpace>(
      std::make_unique<VmmChunkSpace>(address, bytes, std::move(gpus)));
}

Status openToGpu(const std::byte* allocation, size_t bytes, int owner,
                 const cuda::PrimaryContext& gpu) {
  if (owner == gpu.gpu()) return Status::ok();
  int reachable = 0;
  PEERLANE_RETURN_IF_ERROR(
      check(cudaDeviceCanAccessPeer(&reachable, gpu.gpu(), owner), "cudaDeviceCanAccessPeer"));
  if (reachable == 0)
    return Status(Code::kNotSupported,
                  "cuda:" + std::to_string(gpu.gpu()) +
                      " cannot reach the memory of cuda:" + std::to_string(owner));
  const cuda::CurrentContext current(gpu);
  if (void* pool = poolOf(allocation); pool != nullptr) return openPoolToGpu(pool, gpu);
  if (vmmKindOf(allocation).isVmm) {
    const CUmemAccessDesc access = accessFor(gpu.gpu());
    return check(api().cuMemSetAccess(reinterpret_cast<CUdeviceptr>(allocation), bytes, &access, 1),
                 "cuMemSetAccess");
  }
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(owner, 0);
  if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
    return Status::ok();
  }
  return check(enabled, "cudaDeviceEnablePeerAccess");
}

}  // namespace peerlane
