// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/cuda_ipc/cuda_ipc_link.h"

#include <bit>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/memory/cuda/cuda_pools.h"

namespace peerlane {

CudaIpcLink::CudaIpcLink(cuda::Gpus gpus, bool sameProcess, Kept kept, std::string legacyRefused,
                         std::string fabricRefused)
    : gpus_(std::move(gpus)), sameProcess_(sameProcess), kept_(std::move(kept)) {
  traits_.mapsRegions = true;
  traits_.transport = "cuda_ipc";
  traits_.wordsBy = "mapped";
  // A process that maps GPU memory can write to it: CUDA has no read-only import.
  traits_.rightsEnforcedBy = "initiator";
  if (!legacyRefused.empty()) traits_.refused.push_back("legacy CUDA IPC: " + legacyRefused);
  traits_.legacyRefused = std::move(legacyRefused);
  if (!fabricRefused.empty()) traits_.refused.push_back(fabricRefused);
  traits_.fabricRefused = std::move(fabricRefused);
}

Result<Grant> CudaIpcLink::grant(RegionGrant region, const Fd& backing) {
  if (region.kind == MemoryKind::kCudaPrivate && !sameProcess_)
    return Status(Code::kNotSupported,
                  "this GPU memory cannot be mapped by another process; use cudaMalloc, memory or "
                  "pools made for export as a descriptor, or Context::allocate");
  Grant grant;
  const bool travels =
      region.kind == MemoryKind::kCudaDescriptor || region.kind == MemoryKind::kCudaPool;
  if (travels && !sameProcess_) {
    PEERLANE_ASSIGN(grant.fd, backing.dup());
  }
  grant.region = std::move(region);
  return grant;
}

Result<std::vector<VmmHandle>> CudaIpcLink::exportChunks(const RegionGrant& region, uint64_t first,
                                                         uint32_t count) {
  PEERLANE_ASSIGN(const ChunkRuns runs, ChunkRuns::decode(region.handle));
  if (count > runs.count() || first > runs.count() - count)
    return Status(Code::kInvalidArgument, "chunks " + std::to_string(first) + " to " +
                                              std::to_string(first + count) + " of " +
                                              std::to_string(runs.count()));
  const cuda::CurrentContext current(*gpus_.front());
  const auto* const base = std::bit_cast<const std::byte*>(region.base) - region.fdOffset;
  std::vector<VmmHandle> handles;
  for (uint64_t i = first; i < first + count; ++i) {
    const std::byte* const chunk = base + runs.at(i).offset;
    VmmHandle handle;
    if (isByFabric(region.kind)) {
      PEERLANE_ASSIGN(handle.fabric, exportFabric(chunk));
    } else {
      PEERLANE_ASSIGN(handle.fd, exportDescriptor(chunk));
    }
    if (!handle.fd && handle.fabric.empty())
      return Status(Code::kClosed, "chunk " + std::to_string(i) +
                                       " was freed, or is not made for export any more");
    handles.push_back(std::move(handle));
  }
  return handles;
}

// Reserves the addresses; no chunk is mapped yet.
Result<std::shared_ptr<ChunkMap>> CudaIpcLink::reserve(const RegionGrant& region) const {
  PEERLANE_ASSIGN(ChunkRuns runs, ChunkRuns::decode(region.handle));
  uint64_t end = 0;
  if (runs.bytes() != region.backingBytes || region.bytes == 0 ||
      __builtin_add_overflow(region.fdOffset, region.bytes, &end) || end > runs.bytes() ||
      runs.indexOf(region.fdOffset) != 0 || runs.indexOf(end - 1) != runs.count() - 1)
    return Status(Code::kCorrupt, "a grant of " + std::to_string(region.bytes) +
                                      " bytes from offset " + std::to_string(region.fdOffset) +
                                      " of " + runs.text() + ", which are said to have " +
                                      std::to_string(region.backingBytes));
  PEERLANE_ASSIGN(auto space, reserveForChunks(runs.bytes(), gpus_));
  return std::make_shared<ChunkMap>(std::move(runs), region.fdOffset, region.bytes,
                                    std::move(space));
}

namespace {

Status checkBounds(const RegionGrant& region) {
  if (region.fdOffset <= region.backingBytes &&
      region.bytes <= region.backingBytes - region.fdOffset)
    return Status::ok();
  return Status(Code::kCorrupt, "a grant of " + std::to_string(region.bytes) +
                                    " bytes from offset " + std::to_string(region.fdOffset) +
                                    " of an allocation of " + std::to_string(region.backingBytes));
}

}  // namespace

Result<std::shared_ptr<CudaMapping>> CudaIpcLink::mapAllocation(Grant& grant) {
  const RegionGrant& region = grant.region;
  VmmHandle handle;
  if (region.kind == MemoryKind::kCudaFabric) {
    if (region.handle.size() != kFabricHandleBytes)
      return Status(Code::kCorrupt, "a fabric handle of " + std::to_string(region.handle.size()) +
                                        " bytes; expected " + std::to_string(kFabricHandleBytes));
    handle.fabric = region.handle;
  } else {
    handle.fd = std::move(grant.fd);
  }
  const auto import = [&] {
    return CudaMapping::importAllocation(handle, region.backingBytes, gpus_);
  };
  if (region.isKept && kept_.owner)
    return kept_.imports->find(*kept_.owner, region.identity, region.backingBytes, import);
  return known(region, -1, import);
}

Result<std::shared_ptr<CudaMapping>> CudaIpcLink::known(const RegionGrant& region, int gpu,
                                                        const Import& import) {
  std::weak_ptr<CudaMapping>& place = byIdentity_[{region.identity, gpu}];
  if (auto same = place.lock(); same && same->bytes() == region.backingBytes) return same;
  auto made = import();
  if (made.isOk()) place = *made;
  return made;
}

// CUDA opens a handle for one GPU, at an address of its own. A GPU without a path to the memory is
// skipped, and the others map it.
Status CudaIpcLink::openHandles(const RegionGrant& region, RemoteMemory& memory,
                                std::vector<std::shared_ptr<CudaMapping>>& mappings) {
  if (!traits_.legacyRefused.empty())
    return Status(Code::kNotSupported,
                  traits_.legacyRefused +
                      "; VMM memory, pools made for export and Context::allocate go by descriptor");
  Status failed;
  for (const auto& gpu : gpus_) {
    auto opened = known(region, gpu->gpu(), [&] {
      return CudaMapping::importHandle(region.handle, region.identity, region.backingBytes, *gpu);
    });
    if (!opened.isOk()) {
      failed = opened.status().withContext("for cuda:" + std::to_string(gpu->gpu()));
      if (gpus_.size() > 1)
        PEERLANE_LOG_WARN("a region of a peer is not opened {}", failed.toString());
      continue;
    }
    std::byte* const address = (*opened)->data() + region.fdOffset;
    if (memory.mapped == nullptr) memory.mapped = address;
    if (gpus_.size() > 1)
      memory.perDevice.emplace_back(Device{DeviceKind::kCuda, gpu->gpu()}, address);
    mappings.push_back(std::move(*opened));
  }
  return memory.mapped == nullptr ? failed : Status::ok();
}

// Importers of pool memory must free it before its owner does, so it has a hold of its own. Other
// memory merely stays mapped until its last user has ended.
Status CudaIpcLink::importPool(Grant& grant, RemoteMemory& memory) {
  const RegionGrant& region = grant.region;
  if (region.backingBytes > kMostPoolBytes)
    return Status(Code::kNotSupported, "an allocation of " + std::to_string(region.backingBytes) +
                                           " bytes from a pool; at most " +
                                           std::to_string(kMostPoolBytes) + " are imported");
  PEERLANE_ASSIGN(ImportedPoolMemory imported,
                  importPoolMemory(std::move(grant.fd), region.handle, region.identity,
                                   region.backingBytes, gpus_));
  memory.mapped = imported.data + region.fdOffset;
  memory.hold = std::make_shared<PinSlot>();
  return memory.hold->ensure(
      [&] { return Result<std::unique_ptr<DevicePin>>(std::move(imported.hold)); });
}

Result<RemoteMemory> CudaIpcLink::attach(Grant grant) {
  RemoteMemory memory;
  memory.engine = kCudaEngine;
  if (sameProcess_) {
    memory.mapped = std::bit_cast<std::byte*>(grant.region.base);
    for (const auto& gpu : gpus_)
      PEERLANE_RETURN_IF_ERROR(openToGpu(memory.mapped - grant.region.fdOffset,
                                         grant.region.backingBytes, grant.region.device.index,
                                         *gpu));
    memory.grant = std::move(grant.region);
    return memory;
  }
  if (isInChunks(grant.region.kind)) {
    PEERLANE_ASSIGN(memory.chunks, reserve(grant.region));
    memory.mapped = memory.chunks->data();
    memory.grant = std::move(grant.region);
    return memory;
  }
  PEERLANE_RETURN_IF_ERROR(checkBounds(grant.region));
  if (grant.region.kind == MemoryKind::kCudaPool) {
    PEERLANE_RETURN_IF_ERROR(importPool(grant, memory));
    memory.grant = std::move(grant.region);
    return memory;
  }
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<CudaMapping>> mappings;
  if (grant.region.kind == MemoryKind::kCudaHandle) {
    PEERLANE_RETURN_IF_ERROR(openHandles(grant.region, memory, mappings));
  } else {
    PEERLANE_ASSIGN(mappings.emplace_back(), mapAllocation(grant));
    memory.mapped = mappings.front()->data() + grant.region.fdOffset;
  }
  memory.grant = std::move(grant.region);
  memory.linkKey = nextKey_++;
  attached_[memory.linkKey] = std::move(mappings);
  return memory;
}

void CudaIpcLink::detach(RemoteMemory& memory) {
  memory.mapped = nullptr;
  memory.perDevice.clear();
  memory.chunks.reset();
  const MutexLock lock(mutex_);
  attached_.erase(memory.linkKey);
  std::erase_if(byIdentity_, [](const auto& entry) { return entry.second.expired(); });
}

Served CudaIpcLink::serve(AgentWork& work) {
  work.code = Code::kInternal;  // this link maps all memory that it attaches
  return Served::kDone;
}

}  // namespace peerlane
