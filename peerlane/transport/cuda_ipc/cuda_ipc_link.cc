// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/cuda_ipc/cuda_ipc_link.h"

#include <bit>
#include <utility>

namespace peerlane {

CudaIpcLink::CudaIpcLink(cuda::Gpus gpus, bool sameProcess)
    : gpus_(std::move(gpus)), sameProcess_(sameProcess) {
  traits_.mapsRegions = true;
  traits_.transport = "cuda_ipc";
  traits_.wordsBy = "mapped";
  // Whoever maps GPU memory may write to it: CUDA knows no read-only import.
  traits_.rightsEnforcedBy = "initiator";
}

Result<Grant> CudaIpcLink::grant(RegionGrant region, const Fd& backing) {
  if (region.kind == MemoryKind::kCudaPrivate && !sameProcess_)
    return Status(Code::kNotSupported,
                  "this GPU memory cannot be mapped by another process (a pool or allocation that "
                  "was not made for export); use cudaMalloc, exportable VMM memory or "
                  "Context::allocate");
  Grant grant;
  if (region.kind == MemoryKind::kCudaDescriptor && !sameProcess_) {
    PEERLANE_ASSIGN(grant.fd, backing.dup());
  }
  grant.region = std::move(region);
  return grant;
}

Result<std::vector<Fd>> CudaIpcLink::exportChunks(const RegionGrant& region, uint64_t first,
                                                  uint32_t count) {
  PEERLANE_ASSIGN(const ChunkRuns runs, ChunkRuns::decode(region.handle));
  if (count > runs.count() || first > runs.count() - count)
    return Status(Code::kInvalidArgument, "chunks " + std::to_string(first) + " to " +
                                              std::to_string(first + count) + " of " +
                                              std::to_string(runs.count()));
  const cuda::CurrentContext current(*gpus_.front());
  const auto* const base = std::bit_cast<const std::byte*>(region.base) - region.fdOffset;
  std::vector<Fd> fds;
  for (uint64_t i = first; i < first + count; ++i) {
    PEERLANE_ASSIGN(Fd fd, exportDescriptor(base + runs.at(i).offset));
    if (!fd)
      return Status(Code::kClosed, "chunk " + std::to_string(i) +
                                       " was freed, or is not made for export any more");
    fds.push_back(std::move(fd));
  }
  return fds;
}

// Nothing of it is mapped yet.
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

Result<std::shared_ptr<CudaMapping>> CudaIpcLink::map(Grant& grant) {
  const RegionGrant& region = grant.region;
  if (region.fdOffset > region.backingBytes || region.bytes > region.backingBytes - region.fdOffset)
    return Status(Code::kCorrupt, "a grant of " + std::to_string(region.bytes) +
                                      " bytes from offset " + std::to_string(region.fdOffset) +
                                      " of an allocation of " +
                                      std::to_string(region.backingBytes));
  const std::lock_guard lock(mutex_);
  if (auto known = byIdentity_[region.identity].lock();
      known && known->bytes() == region.backingBytes)
    return known;
  Result<std::shared_ptr<CudaMapping>> made =
      region.kind == MemoryKind::kCudaDescriptor
          ? CudaMapping::importDescriptor(std::move(grant.fd), region.backingBytes, gpus_)
          : CudaMapping::importHandle(region.handle, region.identity, region.backingBytes,
                                      *gpus_.front());
  if (made.isOk()) byIdentity_[region.identity] = *made;
  return made;
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
  if (grant.region.kind == MemoryKind::kCudaChunks) {
    PEERLANE_ASSIGN(memory.chunks, reserve(grant.region));
    memory.mapped = memory.chunks->data();
    memory.grant = std::move(grant.region);
    return memory;
  }
  PEERLANE_ASSIGN(std::shared_ptr<CudaMapping> mapping, map(grant));
  memory.mapped = mapping->data() + grant.region.fdOffset;
  memory.grant = std::move(grant.region);
  const std::lock_guard lock(mutex_);
  memory.linkKey = nextKey_++;
  attached_[memory.linkKey] = std::move(mapping);
  return memory;
}

void CudaIpcLink::detach(RemoteMemory& memory) {
  memory.mapped = nullptr;
  memory.chunks.reset();
  const std::lock_guard lock(mutex_);
  attached_.erase(memory.linkKey);
  std::erase_if(byIdentity_, [](const auto& entry) { return entry.second.expired(); });
}

Served CudaIpcLink::serve(AgentWork& work) {
  work.code = Code::kInternal;  // everything it attaches is mapped
  return Served::kDone;
}

}  // namespace peerlane
