// SPDX-License-Identifier: Apache-2.0
//
// CudaIpcLink: maps GPU memory of one peer: by descriptor (VMM), by legacy IPC handle (cudaMalloc),
// or, in one process, by its address. One mapping per allocation of the peer, however many regions
// lie in it; but of a region in chunks, each chunk when it is first touched. Nothing it does waits
// for a GPU.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "peerlane/memory/chunk_map.h"
#include "peerlane/memory/cuda_mapping.h"
#include "peerlane/os/cuda.h"
#include "peerlane/transport/link.h"

namespace peerlane {

class CudaIpcLink final : public Link {
 public:
  CudaIpcLink(cuda::Gpus gpus, bool sameProcess);

  const LinkTraits& traits() const override { return traits_; }
  Result<Grant> grant(RegionGrant region, const Fd& backing) override;
  Result<std::vector<Fd>> exportChunks(const RegionGrant& region, uint64_t first,
                                       uint32_t count) override;
  Result<RemoteMemory> attach(Grant grant) override;
  void detach(RemoteMemory& memory) override;
  bool poll() override { return false; }
  Status health() const override { return Status::ok(); }
  void close(Code /*code*/) override {}  // mappings live until their last user is gone
  Served serve(AgentWork& work) override;

 private:
  Result<std::shared_ptr<CudaMapping>> map(Grant& grant);
  Result<std::shared_ptr<ChunkMap>> reserve(const RegionGrant& region) const;

  const cuda::Gpus gpus_;
  const bool sameProcess_;
  LinkTraits traits_;
  std::mutex mutex_;
  std::map<uint64_t, std::shared_ptr<CudaMapping>> attached_;  // by RemoteMemory::linkKey
  // What is mapped now, by the owner's number of the allocation.
  std::map<uint64_t, std::weak_ptr<CudaMapping>> byIdentity_;
  uint64_t nextKey_ = 1;
};

}  // namespace peerlane
