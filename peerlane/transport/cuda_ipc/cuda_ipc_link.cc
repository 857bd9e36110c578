// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/cuda_ipc/cuda_ipc_link.h"

#include <bit>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/memory/cuda/cuda_pools.h"

namespace peerlane {

CudaIpcLink::CudaIpcLink(cuda::Gpus gpus, bool sameProcess, Kept kept,
                         const std::string& legacyRefused, const std::string& fabricRefused)
    : gpus_(std::move(gpus)), sameProcess_(sameProcess), kept_(std::move(kept)) {
  traits_.transport = "cuda_ipc";
  traits_.scope = LinkScope::kHost;
  traits_.abilities = abilities(sameProcess);
  refuse(MemoryExport::kLegacyHandle, legacyRefused, "legacy CUDA IPC: ");
  refuse(MemoryExport::kFabricHandle, fabricRefused, "");
}

// A process that maps GPU memory can write to it: CUDA has no read-only import.
LinkAbilities CudaIpcLink::abilities(bool sameProcess) {
  constexpr AbilitySet kAll{Ability::kGrants, Ability::kAttaches, Ability::kMaps,
                            Ability::kByDevice};
  LinkAbilities abilities;
  abilities.allow(MemoryPlace::kCuda,
                  {MemoryExport::kNone, MemoryExport::kDescriptor, MemoryExport::kLegacyHandle,
                   MemoryExport::kFabricHandle, MemoryExport::kPool},
                  kAll, Enforcer::kInitiator);
  if (!sameProcess)
    abilities.refuse(MemoryPlace::kCuda, MemoryExport::kNone, kAll,
                     "the peer's memory was not made for export, or its driver exports none of it "
                     "(Region::description at its owner says more)");
  return abilities;
}

void CudaIpcLink::refuse(MemoryExport exported, const std::string& why, const char* what) {
  if (why.empty()) return;
  traits_.refused.push_back(what + why);
  traits_.abilities.refuse(MemoryPlace::kCuda, exported,
                           {Ability::kAttaches, Ability::kMaps, Ability::kByDevice}, why);
}

Result<LinkPart> CudaIpcLink::grant(const RegionRecord& region) {
  const MemoryDescription& memory = region.memory;
  if (memory.kind == MemoryKind::kCudaPrivate && !sameProcess_)
    return Status(Code::kNotSupported,
                  "this GPU memory cannot be mapped by another process; use cudaMalloc, memory or "
                  "pools made for export as a descriptor, or Context::allocate" +
                      (memory.whyNot.empty() ? std::string() : ": " + memory.whyNot));
  LinkPart part;
  part.blob = CudaPart{.address = sameProcess_ ? std::bit_cast<uint64_t>(region.base) : 0,
                       .offset = memory.fdOffset,
                       .backingBytes = memory.backingBytes,
                       .identity = memory.identity,
                       .isKept = memory.isKept,
                       .handle = memory.handle}
                  .encode();
  if (sameProcess_) return part;
  if (memory.pool) {
    PEERLANE_ASSIGN(part.fd, memory.pool->fd.dup());
  } else if (memory.kind == MemoryKind::kCudaDescriptor) {
    PEERLANE_ASSIGN(part.fd, memory.backing.dup());
  }
  return part;
}

Result<std::vector<VmmHandle>> CudaIpcLink::exportChunks(const RegionRecord& region, uint64_t first,
                                                         uint32_t count) {
  PEERLANE_ASSIGN(const ChunkRuns runs, ChunkRuns::decode(region.memory.handle));
  if (count > runs.count() || first > runs.count() - count)
    return Status(Code::kInvalidArgument, "chunks " + std::to_string(first) + " to " +
                                              std::to_string(first + count) + " of " +
                                              std::to_string(runs.count()));
  const cuda::CurrentContext current(*gpus_.front());
  const std::byte* const base = region.base - region.memory.fdOffset;
  std::vector<VmmHandle> handles;
  for (uint64_t i = first; i < first + count; ++i) {
    const std::byte* const chunk = base + runs.at(i).offset;
    VmmHandle handle;
    if (isByFabric(region.memory.kind)) {
      PEERLANE_ASSIGN(handle.fabric, exportFabric(chunk));
    } else {
      PEERLANE_ASSIGN(handle.fd, exportDescriptor(chunk));
    }
    if (!handle.fd && handle.fabric.empty())
      return Status(Code::kRevoked, "chunk " + std::to_string(i) +
                                        " was freed, or is not made for export any more");
    handles.push_back(std::move(handle));
  }
  return handles;
}

// Reserves the addresses; no chunk is mapped yet.
Result<std::shared_ptr<ChunkMap>> CudaIpcLink::reserve(const RegionGrant& region,
                                                       const CudaPart& part) const {
  PEERLANE_ASSIGN(ChunkRuns runs, ChunkRuns::decode(part.handle));
  uint64_t end = 0;
  if (runs.bytes() != part.backingBytes || region.bytes == 0 ||
      __builtin_add_overflow(part.offset, region.bytes, &end) || end > runs.bytes() ||
      runs.indexOf(part.offset) != 0 || runs.indexOf(end - 1) != runs.count() - 1)
    return Status(Code::kCorrupt, "a grant of " + std::to_string(region.bytes) +
                                      " bytes from offset " + std::to_string(part.offset) + " of " +
                                      runs.text() + ", which are said to have " +
                                      std::to_string(part.backingBytes));
  PEERLANE_ASSIGN(auto space, reserveForChunks(runs.bytes(), gpus_));
  return std::make_shared<ChunkMap>(std::move(runs), part.offset, region.bytes, std::move(space));
}

namespace {

Status checkBounds(const RegionGrant& region, const CudaPart& part) {
  if (part.offset <= part.backingBytes && region.bytes <= part.backingBytes - part.offset)
    return Status::ok();
  return Status(Code::kCorrupt, "a grant of " + std::to_string(region.bytes) +
                                    " bytes from offset " + std::to_string(part.offset) +
                                    " of an allocation of " + std::to_string(part.backingBytes));
}

}  // namespace

Result<std::shared_ptr<CudaMapping>> CudaIpcLink::mapAllocation(Grant& grant,
                                                                const CudaPart& part) {
  VmmHandle handle;
  if (grant.region.kind == MemoryKind::kCudaFabric) {
    if (part.handle.size() != kFabricHandleBytes)
      return Status(Code::kCorrupt, "a fabric handle of " + std::to_string(part.handle.size()) +
                                        " bytes; expected " + std::to_string(kFabricHandleBytes));
    handle.fabric = part.handle;
  } else {
    handle.fd = std::move(grant.own.fd);
  }
  const auto import = [&] {
    return CudaMapping::importAllocation(handle, part.backingBytes, gpus_);
  };
  if (part.isKept && kept_.owner)
    return kept_.imports->find(*kept_.owner, part.identity, part.backingBytes, import);
  return known(part, -1, import);
}

Result<std::shared_ptr<CudaMapping>> CudaIpcLink::known(const CudaPart& part, int gpu,
                                                        const Import& import) {
  std::weak_ptr<CudaMapping>& place = byIdentity_[{part.identity, gpu}];
  if (auto same = place.lock(); same && same->bytes() == part.backingBytes) return same;
  auto made = import();
  if (made.isOk()) place = *made;
  return made;
}

// CUDA opens a handle for one GPU, at an address of its own. A GPU without a path to the memory is
// skipped, and the others map it.
Status CudaIpcLink::openHandles(const CudaPart& part, RemoteMemory& memory,
                                std::vector<std::shared_ptr<CudaMapping>>& mappings) {
  if (const std::string& refused = traits_.abilities.whyNot(MemoryKind::kCudaHandle);
      !refused.empty())
    return Status(
        Code::kNotSupported,
        refused + "; VMM memory, pools made for export and Context::allocate go by descriptor");
  Status failed;
  for (const auto& gpu : gpus_) {
    auto opened = known(part, gpu->gpu(), [&] {
      return CudaMapping::importHandle(part.handle, part.identity, part.backingBytes, *gpu);
    });
    if (!opened.isOk()) {
      failed = opened.status().withContext("for cuda:" + std::to_string(gpu->gpu()));
      if (gpus_.size() > 1 && lines_.allows())
        PEERLANE_LOG_WARN("a region of a peer is not opened {}{}", failed.toString(),
                          lines_.leftOut());
      continue;
    }
    std::byte* const address = (*opened)->data() + part.offset;
    if (memory.mapped == nullptr) memory.mapped = address;
    if (gpus_.size() > 1)
      memory.perDevice.emplace_back(Device{DeviceKind::kCuda, gpu->gpu()}, address);
    mappings.push_back(std::move(*opened));
  }
  return memory.mapped == nullptr ? failed : Status::ok();
}

// Importers of pool memory must free it before its owner does, so it has a hold of its own. Other
// memory merely stays mapped until its last user has ended.
Status CudaIpcLink::importPool(Fd pool, const CudaPart& part, RemoteMemory& memory) {
  if (part.backingBytes > kMostPoolBytes)
    return Status(Code::kNotSupported, "an allocation of " + std::to_string(part.backingBytes) +
                                           " bytes from a pool; at most " +
                                           std::to_string(kMostPoolBytes) + " are imported");
  PEERLANE_ASSIGN(
      ImportedPoolMemory imported,
      importPoolMemory(std::move(pool), part.handle, part.identity, part.backingBytes, gpus_));
  memory.mapped = imported.data + part.offset;
  memory.hold = std::make_shared<PinSlot>();
  return memory.hold->ensure(
      [&] { return Result<std::unique_ptr<DevicePin>>(std::move(imported.hold)); });
}

Result<RemoteMemory> CudaIpcLink::attach(Grant grant) {
  PEERLANE_ASSIGN(const CudaPart part, CudaPart::decode(grant.own.blob));
  RemoteMemory memory;
  memory.engine = kCudaEngine;
  if (sameProcess_) {
    memory.mapped = std::bit_cast<std::byte*>(part.address);
    for (const auto& gpu : gpus_)
      PEERLANE_RETURN_IF_ERROR(openToGpu(memory.mapped - part.offset, part.backingBytes,
                                         grant.region.device.index, *gpu));
    memory.grant = std::move(grant.region);
    return memory;
  }
  if (isInChunks(grant.region.kind)) {
    PEERLANE_ASSIGN(memory.chunks, reserve(grant.region, part));
    memory.mapped = memory.chunks->data();
    memory.grant = std::move(grant.region);
    return memory;
  }
  PEERLANE_RETURN_IF_ERROR(checkBounds(grant.region, part));
  if (grant.region.kind == MemoryKind::kCudaPool) {
    PEERLANE_RETURN_IF_ERROR(importPool(std::move(grant.own.fd), part, memory));
    memory.grant = std::move(grant.region);
    return memory;
  }
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<CudaMapping>> mappings;
  if (grant.region.kind == MemoryKind::kCudaHandle) {
    PEERLANE_RETURN_IF_ERROR(openHandles(part, memory, mappings));
  } else {
    PEERLANE_ASSIGN(mappings.emplace_back(), mapAllocation(grant, part));
    memory.mapped = mappings.front()->data() + part.offset;
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
