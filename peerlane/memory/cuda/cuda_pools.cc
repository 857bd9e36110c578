// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/cuda/cuda_pools.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/core/log_limit.h"
#include "peerlane/core/mutex.h"
#include "peerlane/memory/vmm_handle.h"
#include "peerlane/os/cuda_driver.h"
#include "peerlane/os/process.h"

namespace peerlane {
namespace {

using cuda::api;
using cuda::check;
using Gpu = std::shared_ptr<const cuda::PrimaryContext>;

CUmemoryPool asPool(void* pool) {
  return static_cast<CUmemoryPool>(pool);
}

CUmemAccessDesc poolAccessFor(int gpu) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = gpu;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

// Pools that regions of this process lie in. A new pool may get the address of a destroyed one. So
// an entry is valid only while an allocation that was seen in the pool still exists, because an
// allocation keeps its pool alive.
class ExportedPools {
 public:
  static ExportedPools& instance() {
    static auto* const only = new ExportedPools;
    return *only;
  }

  // Null: the pool was not made for export; `whyNot` gets the driver's reason.
  Result<std::shared_ptr<const ExportedPool>> find(void* pool, const void* allocation,
                                                   uint64_t identity, std::string& whyNot) {
    const MutexLock lock(mutex_);
    std::erase_if(known_, [](const auto& entry) { return entry.second.pool.expired(); });
    if (const auto found = known_.find(pool); found != known_.end()) {
      Known& known = found->second;
      auto same = known.pool.lock();
      // An allocation that was freed proves nothing any more: forget it.
      std::erase_if(known.witnesses, [pool](const auto& witness) {
        return cuda::identityOf(witness.first) != witness.second || poolOf(witness.first) != pool;
      });
      if (same && !known.witnesses.empty()) {
        known.witnesses[allocation] = identity;
        return std::shared_ptr<const ExportedPool>(std::move(same));
      }
    }
    int fd = -1;
    const Status exported =
        check(api().cuMemPoolExportToShareableHandle(&fd, asPool(pool),
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              "cuMemPoolExportToShareableHandle");
    if (!exported.isOk()) {
      whyNot = exported.message();
      return std::shared_ptr<const ExportedPool>();
    }
    auto made = std::make_shared<ExportedPool>();
    made->fd = Fd(fd);
    PEERLANE_RETURN_IF_ERROR(fillRandom(made->name));
    known_[pool] = {made, {{allocation, identity}}};
    return std::shared_ptr<const ExportedPool>(std::move(made));
  }

 private:
  struct Known {
    std::weak_ptr<const ExportedPool> pool;
    // Allocations of the pool with their numbers. One that still exists keeps the pool alive, and
    // so its name, by which importers know an allocation.
    std::map<const void*, uint64_t> witnesses;
  };
  Mutex mutex_;
  std::map<void*, Known> known_ PEERLANE_GUARDED_BY(mutex_);
};

// The imports of this process, one for each allocation, even where several exports of it arrive:
// the driver's data differ with every export, and the driver does not count imports, so the first
// free would end the allocation for all importers.
class ImportedPools {
 public:
  static ImportedPools& instance() {
    static auto* const only = new ImportedPools;  // outlives the last static holder of an import
    return *only;
  }

  static std::string nameIn(std::span<const std::byte> handle) {
    return {reinterpret_cast<const char*>(handle.data()), kNameBytes};
  }

  Result<std::byte*> take(const Fd& fd, std::span<const std::byte> handle, const std::string& key,
                          const cuda::Gpus& gpus) {
    const MutexLock lock(mutex_);
    const std::string name = nameIn(handle);
    PEERLANE_RETURN_IF_ERROR(openPool(name, fd, gpus));
    auto found = pointers_.find(key);
    if (found == pointers_.end()) {
      CUmemPoolPtrExportData data;
      std::memcpy(&data, handle.data() + kNameBytes, sizeof(data));
      CUdeviceptr address = 0;
      const Status imported =
          check(api().cuMemPoolImportPointer(&address, pools_.at(name).handle, &data),
                "cuMemPoolImportPointer");
      if (!imported.isOk()) {
        closePool(name);
        return imported;
      }
      found = pointers_.emplace(key, Pointer{address, name, 0}).first;
      ++pools_.at(name).pointers;
    }
    ++found->second.users;
    return reinterpret_cast<std::byte*>(found->second.address);
  }

  // The free does not wait for the GPU (10 us while a kernel and a stream waited, measured).
  void drop(const std::string& key, const cuda::PrimaryContext& gpu) {
    const MutexLock lock(mutex_);
    const auto found = pointers_.find(key);
    if (--found->second.users != 0) return;
    const cuda::CurrentContext current(gpu);
    const cudaError_t code = cudaFree(reinterpret_cast<void*>(found->second.address));
    // During exit() CUDA may have ended before this, and the memory with it.
    if (Status freed = check(code, "cudaFree"); !freed.isOk() && code != cudaErrorCudartUnloading) {
      (void)cudaGetLastError();
      if (lines_.allows())
        PEERLANE_LOG_WARN("memory of a peer's pool was not freed: {}{}", freed.toString(),
                          lines_.leftOut());
    }
    const std::string pool = found->second.pool;
    pointers_.erase(found);
    --pools_.at(pool).pointers;
    closePool(pool);
  }

 private:
  static constexpr size_t kNameBytes = 16;
  struct Pool {
    CUmemoryPool handle = nullptr;
    std::set<int> gpus;  // that have access
    size_t pointers = 0;
  };
  struct Pointer {
    CUdeviceptr address = 0;
    std::string pool;
    size_t users = 0;
  };

  Status openPool(const std::string& name, const Fd& fd, const cuda::Gpus& gpus)
      PEERLANE_REQUIRES(mutex_) {
    const bool isNew = !pools_.contains(name);
    if (isNew) {
      CUmemoryPool handle = nullptr;
      PEERLANE_RETURN_IF_ERROR(check(api().cuMemPoolImportFromShareableHandle(
                                         &handle, reinterpret_cast<void*>(intptr_t{fd.get()}),
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                                     "cuMemPoolImportFromShareableHandle"));
      pools_[name].handle = handle;
    }
    Pool& pool = pools_.at(name);
    std::vector<CUmemAccessDesc> access;
    for (const auto& gpu : gpus)
      if (!pool.gpus.contains(gpu->gpu())) access.push_back(poolAccessFor(gpu->gpu()));
    if (access.empty()) return Status::ok();
    Status given = check(api().cuMemPoolSetAccess(pool.handle, access.data(), access.size()),
                         "cuMemPoolSetAccess");
    if (!given.isOk()) {
      closePool(name);
      return given;
    }
    for (const auto& gpu : gpus) pool.gpus.insert(gpu->gpu());
    return Status::ok();
  }

  // Forgets the pool where none of its allocations is imported any more.
  void closePool(const std::string& name) PEERLANE_REQUIRES(mutex_) {
    const auto found = pools_.find(name);
    if (found->second.pointers != 0) return;
    (void)api().cuMemPoolDestroy(found->second.handle);
    pools_.erase(found);
  }

  Mutex mutex_;
  LogLimit lines_ PEERLANE_GUARDED_BY(mutex_);
  std::map<std::string, Pool> pools_ PEERLANE_GUARDED_BY(mutex_);  // by name
  // By pool and the owner's number.
  std::map<std::string, Pointer> pointers_ PEERLANE_GUARDED_BY(mutex_);
};

class PoolHold final : public DevicePin {
 public:
  PoolHold(std::string key, Gpu gpu) : key_(std::move(key)), gpu_(std::move(gpu)) {}
  ~PoolHold() override { end(); }

 private:
  void whenEnded(std::function<void()> done) override {
    end();
    if (done) done();
  }
  void end() {
    if (!std::exchange(ended_, true)) ImportedPools::instance().drop(key_, *gpu_);
  }

  const std::string key_;
  const Gpu gpu_;
  bool ended_ = false;
};

}  // namespace

Result<PoolMemory> describePoolMemory(void* pool, const void* allocation, size_t bytes,
                                      uint64_t identity) {
  PoolMemory memory;
  if (bytes > kMostPoolBytes) {
    memory.whyNot = "it lies in one allocation of " + std::to_string(bytes) +
                    " bytes from a pool, and drivers fail to import more than " +
                    std::to_string(kMostPoolBytes) + "; use smaller ones, or cudaMalloc";
    return memory;
  }
  std::string why;
  PEERLANE_ASSIGN(auto exported, ExportedPools::instance().find(pool, allocation, identity, why));
  if (!exported) {
    memory.whyNot =
        "it was taken from a pool that was not made for export (cudaMemPoolProps::handleTypes "
        "without cudaMemHandleTypePosixFileDescriptor; " +
        why + ")";
    return memory;
  }
  CUmemPoolPtrExportData data;
  static_assert(kPoolHandleBytes == sizeof(exported->name) + sizeof(data));
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuMemPoolExportPointer(&data, reinterpret_cast<CUdeviceptr>(allocation)),
            "cuMemPoolExportPointer"));
  memory.handle.resize(kPoolHandleBytes);
  std::copy(exported->name.begin(), exported->name.end(), memory.handle.begin());
  std::memcpy(memory.handle.data() + exported->name.size(), &data, sizeof(data));
  memory.pool = std::move(exported);
  return memory;
}

Result<ImportedPoolMemory> importPoolMemory(Fd fd, std::span<const std::byte> handle,
                                            uint64_t identity, size_t bytes,
                                            const cuda::Gpus& gpus) {
  if (handle.size() != kPoolHandleBytes)
    return Status(Code::kCorrupt, "pool memory with a handle of " + std::to_string(handle.size()) +
                                      " bytes; expected " + std::to_string(kPoolHandleBytes));
  if (!fd) return Status(Code::kCorrupt, "pool memory without the descriptor of its pool");
  std::string key = ImportedPools::nameIn(handle) + std::to_string(identity);
  const cuda::CurrentContext current(*gpus.front());
  ImportedPoolMemory memory;
  PEERLANE_ASSIGN(memory.data, ImportedPools::instance().take(fd, handle, key, gpus));
  memory.hold = std::make_unique<PoolHold>(std::move(key), gpus.front());
  PEERLANE_RETURN_IF_ERROR(checkImportedBytes(memory.data, bytes));
  return memory;
}

void* poolOf(const void* allocation) {
  CUmemoryPool pool = nullptr;
  return api().cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                     reinterpret_cast<CUdeviceptr>(allocation)) == CUDA_SUCCESS
             ? pool
             : nullptr;
}

Status openPoolToGpu(void* pool, const cuda::PrimaryContext& gpu) {
  CUmemAccessDesc access = poolAccessFor(gpu.gpu());
  CUmemAccess_flags flags{};
  if (api().cuMemPoolGetAccess(&flags, asPool(pool), &access.location) == CUDA_SUCCESS &&
      flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    return Status::ok();
  return check(api().cuMemPoolSetAccess(asPool(pool), &access, 1), "cuMemPoolSetAccess");
}

}  // namespace peerlane
