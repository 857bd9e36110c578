// SPDX-License-Identifier: Apache-2.0
//
// CudaIpcLink: maps GPU memory of one peer: by descriptor or fabric handle (VMM), by legacy IPC
// handle (cudaMalloc), by its pool's descriptor (cudaMallocAsync), or, in one process, by its
// address. One mapping per allocation of the peer, however many regions lie in it. Exceptions: a
// region in chunks has one mapping per chunk, made when a transfer first touches it; a legacy
// handle has one mapping per GPU. No call waits for a GPU.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/core/log_limit.h"
#include "peerlane/core/mutex.h"
#include "peerlane/memory/chunk_map.h"
#include "peerlane/memory/cuda/cuda_mapping.h"
#include "peerlane/os/cuda.h"
#include "peerlane/transport/cuda_ipc/cuda_part.h"
#include "peerlane/transport/cuda_ipc/kept_imports.h"
#include "peerlane/transport/link.h"

namespace peerlane {

class CudaIpcLink final : public Link {
 public:
  // Where mappings that outlive their regions are kept (KeptImports), shared with other links to
  // the process `owner`, if that is known.
  struct Kept {
    std::shared_ptr<KeptImports> imports;
    std::optional<ProcessName> owner;
  };
  // `legacyRefused`, `fabricRefused`: why this side cannot open memory that travels by legacy or by
  // fabric handle, although it can open other kinds. Empty: it can.
  CudaIpcLink(cuda::Gpus gpus, bool sameProcess, Kept kept, const std::string& legacyRefused,
              const std::string& fabricRefused);
  static LinkAbilities abilities(bool sameProcess);

  const LinkTraits& traits() const override { return traits_; }
  Result<LinkPart> grant(const RegionRecord& region) override;
  Result<std::vector<VmmHandle>> exportChunks(const RegionRecord& region, uint64_t first,
                                              uint32_t count) override;
  Result<RemoteMemory> attach(Grant grant) override;
  void detach(RemoteMemory& memory) override;
  bool poll() override { return false; }
  Status health() const override { return Status::ok(); }
  void close(Code /*code*/) override {}  // mappings live until their last user has ended
  Served serve(AgentWork& work) override;

 private:
  using Import = std::function<Result<std::shared_ptr<CudaMapping>>()>;
  void refuse(MemoryExport exported, const std::string& why, const char* what);
  Result<std::shared_ptr<CudaMapping>> known(const CudaPart& part, int gpu, const Import& import)
      PEERLANE_REQUIRES(mutex_);
  Result<std::shared_ptr<CudaMapping>> mapAllocation(Grant& grant, const CudaPart& part)
      PEERLANE_REQUIRES(mutex_);
  Status openHandles(const CudaPart& part, RemoteMemory& memory,
                     std::vector<std::shared_ptr<CudaMapping>>& mappings) PEERLANE_REQUIRES(mutex_);
  Status importPool(Fd pool, const CudaPart& part, RemoteMemory& memory);
  Result<std::shared_ptr<ChunkMap>> reserve(const RegionGrant& region, const CudaPart& part) const;

  const cuda::Gpus gpus_;
  const bool sameProcess_;
  const Kept kept_;
  LinkTraits traits_;
  Mutex mutex_;
  // By RemoteMemory::linkKey.
  std::map<uint64_t, std::vector<std::shared_ptr<CudaMapping>>> attached_
      PEERLANE_GUARDED_BY(mutex_);
  // The current mappings, by the owner's number of the allocation and, for a legacy handle, the
  // GPU.
  std::map<std::pair<uint64_t, int>, std::weak_ptr<CudaMapping>> byIdentity_
      PEERLANE_GUARDED_BY(mutex_);
  uint64_t nextKey_ PEERLANE_GUARDED_BY(mutex_) = 1;
  LogLimit lines_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
