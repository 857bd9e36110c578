// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/link_side.h"

#include <cuda_runtime_api.h>

#include "peerlane/memory/chunk_map.h"
#include "peerlane/memory/cuda/cuda_pools.h"
#include "peerlane/memory/cuda/cuda_provider.h"
#include "peerlane/transport/cuda_ipc/cuda_ipc_transport.h"
#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kGranule = size_t{2} << 20;
constexpr size_t kOffset = 1001;  // in the middle of an allocation, at an odd place

// Memory of this process, and what keeps it.
struct Taken {
  std::byte* data = nullptr;
  std::shared_ptr<void> owner;
};

Taken takeMalloc(size_t bytes) {
  void* base = nullptr;
  mustCuda(cudaMalloc(&base, bytes + 2 * kOffset), "cudaMalloc");
  return {static_cast<std::byte*>(base) + kOffset,
          {base, [](void* at) { mustCuda(cudaFree(at), "cudaFree"); }}};
}

Taken takeFromPool(int gpu, size_t bytes) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.handleTypes = cudaMemHandleTypePosixFileDescriptor;
  properties.location = {cudaMemLocationTypeDevice, gpu};
  cudaMemPool_t pool = nullptr;
  mustCuda(cudaMemPoolCreate(&pool, &properties), "cudaMemPoolCreate");
  void* base = nullptr;
  mustCuda(cudaMallocFromPoolAsync(&base, bytes + 2 * kOffset, pool, nullptr), "from a pool");
  mustCuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  return {static_cast<std::byte*>(base) + kOffset, {base, [pool](void* at) {
                                                      mustCuda(cudaFree(at), "cudaFree");
                                                      mustCuda(cudaMemPoolDestroy(pool), "destroy");
                                                    }}};
}

// Of one chunk, or across the border of the first two, whatever there is of it.
Taken takeSegment(int gpu, size_t bytes, bool inChunks, Export as) {
  const size_t offset = inChunks ? kGranule - 37 : kOffset;
  const size_t granules = (offset + bytes + kGranule - 1) / kGranule;
  auto segment = std::make_shared<Segment>(
      gpu, inChunks ? chunks(granules) : chunks(1, granules * kGranule), as);
  return {segment->data() + offset, std::move(segment)};
}

Taken takeAllocation(CudaProvider& provider, int gpu, size_t bytes) {
  AllocateOptions options;
  options.device = {DeviceKind::kCuda, gpu};
  std::shared_ptr<Allocation> made = must(provider.allocate(kOffset + bytes, options), "allocate");
  return {made->data() + kOffset, std::move(made)};
}

Taken take(CudaProvider& provider, int gpu, MemoryKind kind, size_t bytes) {
  if (kind == MemoryKind::kCudaHandle) return takeMalloc(bytes);
  if (kind == MemoryKind::kCudaPool) return takeFromPool(gpu, bytes);
  if (kind == MemoryKind::kCudaFabric) return takeSegment(gpu, bytes, false, Export::kFabric);
  if (kind == MemoryKind::kCudaChunks) return takeSegment(gpu, bytes, true, Export::kDescriptor);
  if (kind == MemoryKind::kCudaFabricChunks) return takeSegment(gpu, bytes, true, Export::kFabric);
  return takeAllocation(provider, gpu, bytes);
}

}  // namespace

uint64_t CopyPath::load(const std::byte* word) {
  uint64_t value = 0;
  copy(reinterpret_cast<std::byte*>(&value), word, sizeof(value));
  return value;
}

void CopyPath::store(std::byte* word, uint64_t value, Width width) {
  copy(word, reinterpret_cast<const std::byte*>(&value), width == Width::k64 ? 8 : 4);
}

void CopyPath::add(std::byte* word, uint64_t value) {
  const std::lock_guard lock(mutex_);
  store(word, load(word) + value, Width::k64);
}

void NearSide::Path::copy(std::byte* to, const std::byte* from, size_t bytes) {
  const cuda::CurrentContext current(*gpu_);
  mustCuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
  mustCuda(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
}

NearSide::NearSide(int gpu, MemoryKind kind, const PeerFacts& facts)
    : gpu_(must(cuda::PrimaryContext::retainShared(gpu), "retain")),
      kind_(kind),
      path_(gpu_),
      loop_(must(EventLoop::create(), "loop")),
      readiness_(must(ReadinessSet::create(), "readiness")),
      bell_(must(Bell::create(), "bell")),
      transport_(makeCudaIpcTransport({gpu_})),
      pending_(must(
          transport_->prepare(facts, {config_, *loop_, *readiness_, *bell_, regions_, nullptr}),
          "prepare")) {}

void NearSide::complete(Offer peerOffer) {
  link_ = must(pending_->complete(std::move(peerOffer)), "complete");
}

LinkMemory NearSide::allocate(size_t bytes) {
  const cuda::CurrentContext current(*gpu_);
  CudaProvider provider({gpu_});
  Taken taken = take(provider, gpu_->gpu(), kind_, bytes);
  MemoryClaim claim = must(provider.acquire(taken.data, bytes, 0), "acquire");
  PEERLANE_CHECK(claim.held);
  std::optional described = must(claim.held->describe(), "describe");
  PEERLANE_CHECK(described->kind == kind_);
  clear(taken.data, bytes, 0);
  LinkMemory memory;
  memory.bytes = {taken.data, bytes};
  memory.owner = std::move(taken.owner);
  memory.kind = described->kind;
  const int backing = described->pool ? described->pool->fd.get() : described->backing.get();
  if (backing >= 0) memory.backing = must(duplicateFd(backing), "dup");
  memory.fdOffset = described->fdOffset;
  memory.device = described->device;
  memory.backingBytes = described->backingBytes;
  memory.identity = described->identity;
  memory.handle = std::move(described->handle);
  return memory;
}

Result<LinkPart> NearSide::grant(const RegionRecord& region) {
  return link_->grant(region);
}

std::vector<VmmHandle> NearSide::chunksOf(const RegionRecord& region) {
  if (!isInChunks(region.memory.kind)) return {};
  const ChunkRuns runs = must(ChunkRuns::decode(region.memory.handle), "sizes of chunks");
  return must(link_->exportChunks(region, 0, static_cast<uint32_t>(runs.count())), "exportChunks");
}

Result<RemoteMemory> NearSide::attach(Grant grant, std::vector<VmmHandle> chunks) {
  PEERLANE_ASSIGN(RemoteMemory memory, link_->attach(std::move(grant)));
  if (memory.chunks) {
    PEERLANE_CHECK(memory.chunks->ask(0, memory.grant.bytes).size() == 1);
    PEERLANE_RETURN_IF_ERROR(memory.chunks->map(0, std::move(chunks)));
    PEERLANE_CHECK(memory.chunks->complete());
  }
  RemoteMemory seen;
  seen.grant = memory.grant;
  seen.mapped = memory.mapped;
  seen.engine = memory.engine;
  seen.linkKey = ++lastKey_;
  attached_.emplace(seen.linkKey, std::move(memory));
  return seen;
}

void NearSide::detach(uint64_t key) {
  const cuda::CurrentContext current(*gpu_);
  const auto found = attached_.find(key);
  link_->detach(found->second);
  attached_.erase(found);
}

}  // namespace peerlane::gputest
