// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/cuda/cuda_provider.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "peerlane/memory/chunk_runs.h"
#include "peerlane/memory/cuda/cuda_export.h"
#include "peerlane/memory/cuda/cuda_mapping.h"
#include "peerlane/memory/cuda/cuda_pools.h"
#include "peerlane/os/cuda_driver.h"

namespace peerlane {
namespace {

using cuda::api;
using cuda::check;

CUdeviceptr addressOf(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

// The driver's answer for one address. `type` 0: not the driver's memory.
struct PointerFacts {
  unsigned type = 0;
  unsigned managed = 0;
  int gpu = -1;
  unsigned legacyCapable = 0;
  unsigned long long identity = 0;
  void* pool = nullptr;  // that it was taken from (cudaMallocAsync)
};

Result<PointerFacts> factsOf(const void* pointer) {
  PointerFacts facts;
  CUpointer_attribute names[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
      CU_POINTER_ATTRIBUTE_BUFFER_ID,      CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  void* values[] = {&facts.type,          &facts.managed,  &facts.gpu,
                    &facts.legacyCapable, &facts.identity, &facts.pool};
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuPointerGetAttributes(std::size(names), names, values, addressOf(pointer)),
            "cuPointerGetAttributes"));
  return facts;
}

Status notExported(MemoryDescription& description, std::string whyNot) {
  description.kind = MemoryKind::kCudaPrivate;
  description.text += "; not mapped by peers: " + whyNot;
  description.whyNot = std::move(whyNot);
  return Status::ok();
}

// Part of each text about fabric handles: this code has not yet run on a machine that has them.
constexpr const char* kUnverified = ", unverified on hardware";

// A descriptor is the first choice: it holds the memory, and needs no IMEX channel.
Status describeVmm(CUdeviceptr base, MemoryDescription& description) {
  const auto* const allocation = reinterpret_cast<const void*>(base);
  PEERLANE_ASSIGN(description.backing, exportDescriptor(allocation));
  if (description.backing) {
    description.kind = MemoryKind::kCudaDescriptor;
    description.text += ", VMM (descriptor)";
    return Status::ok();
  }
  auto fabric = exportFabric(allocation);
  if (!fabric.isOk()) return notExported(description, std::string(fabric.status().message()));
  if (fabric->empty())
    return notExported(description,
                       "neither cudaMalloc memory nor made for export as a descriptor or by "
                       "fabric handle");
  description.kind = MemoryKind::kCudaFabric;
  description.handle = std::move(*fabric);
  description.text += ", VMM (fabric handle" + std::string(kUnverified) + ")";
  return Status::ok();
}

Status describeExport(CUdeviceptr base, size_t size, const PointerFacts& facts,
                      MemoryDescription& description) {
  description.backingBytes = size;
  if (facts.legacyCapable != 0) {
    cudaIpcMemHandle_t handle;
    const Status got =
        check(cudaIpcGetMemHandle(&handle, reinterpret_cast<void*>(base)), "cudaIpcGetMemHandle");
    if (got.isOk()) {
      description.kind = MemoryKind::kCudaHandle;
      description.handle.resize(sizeof(handle));
      std::memcpy(description.handle.data(), &handle, sizeof(handle));
      description.text += ", cudaMalloc (IPC handle)";
      return Status::ok();
    }
    (void)cudaGetLastError();
    return notExported(description, "no IPC handle: " + std::string(got.message()));
  }
  if (facts.pool != nullptr) {
    PEERLANE_ASSIGN(
        PoolMemory memory,
        describePoolMemory(facts.pool, reinterpret_cast<const void*>(base), size, facts.identity));
    if (!memory.pool) return notExported(description, std::move(memory.whyNot));
    description.kind = MemoryKind::kCudaPool;
    description.pool = std::move(memory.pool);
    description.handle = std::move(memory.handle);
    description.text += ", cudaMallocAsync (pool's descriptor)";
    return Status::ok();
  }
  return describeVmm(base, description);
}

// The one way in which all chunks of a range can travel: all by descriptor, or else all by fabric
// handle.
class CommonWay {
 public:
  void add(uint64_t chunk, const VmmKind& kind) {
    if (!kind.byDescriptor) noDescriptor_ = std::min(noDescriptor_, chunk);
    if (!kind.byFabric) noFabric_ = std::min(noFabric_, chunk);
    if (!kind.byDescriptor && !kind.byFabric) fixed_ = std::min(fixed_, chunk);
  }
  bool byDescriptor() const { return noDescriptor_ == kNone; }
  bool byFabric() const { return noFabric_ == kNone; }
  // Empty: one of the two.
  std::string whyNot() const {
    if (byDescriptor() || byFabric()) return {};
    if (fixed_ != kNone) return "chunk " + std::to_string(fixed_) + " was not made for export";
    return "chunk " + std::to_string(noDescriptor_) +
           " was not made for export as a descriptor, and chunk " + std::to_string(noFabric_) +
           " not by fabric handle; all have to travel alike";
  }

 private:
  static constexpr uint64_t kNone = UINT64_MAX;
  uint64_t noDescriptor_ = kNone;  // the first of each
  uint64_t noFabric_ = kNone;
  uint64_t fixed_ = kNone;
};

// The first chunk shows whether the driver makes fabric handles of such memory.
Status describeWay(const CommonWay& way, CUdeviceptr base, MemoryDescription& description) {
  if (way.byDescriptor()) {
    description.text += " (VMM, descriptors on demand)";
    return Status::ok();
  }
  std::string whyNot = way.whyNot();
  if (way.byFabric()) whyNot = exportFabric(reinterpret_cast<const void*>(base)).status().message();
  if (!whyNot.empty()) {
    description.handle.clear();
    return notExported(description, std::move(whyNot));
  }
  description.kind = MemoryKind::kCudaFabricChunks;
  description.text += " (VMM, fabric handles on demand" + std::string(kUnverified) + ")";
  return Status::ok();
}

// A range that begins `offset` bytes after `base` and is made of several VMM allocations, side by
// side. A chunk is exported when a peer asks for it: thousands of descriptors would be more than a
// process may hold.
Result<MemoryDescription> describeChunks(CUdeviceptr base, uint64_t firstBytes, uint64_t offset,
                                         uint64_t bytes, int gpu) {
  MemoryDescription description;
  description.device = {DeviceKind::kCuda, gpu};
  description.kind = MemoryKind::kCudaChunks;
  description.fdOffset = offset;
  ChunkRuns runs;
  CommonWay way;
  for (CUdeviceptr at = base; at - base < offset + bytes;) {
    const auto* const pointer = reinterpret_cast<const void*>(at);
    PEERLANE_ASSIGN(const PointerFacts facts, factsOf(pointer));
    const VmmKind kind = facts.type == CU_MEMORYTYPE_DEVICE ? vmmKindOf(pointer) : VmmKind{};
    CUdeviceptr chunk = 0;
    size_t size = 0;
    if (!kind.isVmm || api().cuMemGetAddressRange(&chunk, &size, at) != CUDA_SUCCESS || chunk != at)
      return Status(Code::kInvalidArgument,
                    std::to_string(bytes) +
                        " bytes run past the end of the GPU allocation, which has " +
                        std::to_string(std::max(runs.bytes(), firstBytes) - offset) + " from here");
    if (facts.gpu != gpu)
      return Status(Code::kNotSupported, "the range lies on cuda:" + std::to_string(gpu) +
                                             " and cuda:" + std::to_string(facts.gpu) +
                                             "; register each part by itself");
    way.add(runs.count(), kind);
    runs.add(size);
    if (!runs.fits())
      return Status(Code::kNotSupported,
                    "the range is made of too many chunks (" + runs.text() + "; at most " +
                        std::to_string(ChunkRuns::kMostRuns) + " changes of size, and " +
                        std::to_string(ChunkRuns::kMostChunks) + " chunks): register it in parts");
    description.chunks.push_back({size, facts.identity});
    at += size;
  }
  description.identity = description.chunks.front().identity;
  description.backingBytes = runs.bytes();
  description.handle = runs.encode();
  description.text = "memory of cuda:" + std::to_string(gpu) + ", " + runs.text();
  PEERLANE_RETURN_IF_ERROR(describeWay(way, base, description));
  return description;
}

// With the GPU current.
Result<MemoryDescription> descriptionOf(const void* pointer, size_t bytes,
                                        const PointerFacts& facts) {
  CUdeviceptr base = 0;
  size_t size = 0;
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuMemGetAddressRange(&base, &size, addressOf(pointer)), "cuMemGetAddressRange"));
  const uint64_t offset = addressOf(pointer) - base;
  if (bytes > size - offset) return describeChunks(base, size, offset, bytes, facts.gpu);
  MemoryDescription description;
  description.device = {DeviceKind::kCuda, facts.gpu};
  description.kind = MemoryKind::kCudaPrivate;
  description.fdOffset = offset;
  description.identity = facts.identity;
  description.text = "memory of cuda:" + std::to_string(facts.gpu);
  PEERLANE_RETURN_IF_ERROR(describeExport(base, size, facts, description));
  return description;
}

// Memory of the program's own, as it was when it was acquired.
class CudaMemory final : public HeldMemory {
 public:
  CudaMemory(CudaRange range, std::shared_ptr<const cuda::PrimaryContext> gpu,
             MemoryDescription description)
      : range_(range), gpu_(std::move(gpu)), description_(std::move(description)) {}

  Result<MemoryDescription> describe() const override { return std::move(description_); }
  Result<MemoryFacts> facts() const override { return cudaFacts(range_); }
  Result<ExportedRange> exportAs(ExportForm form, const Importer& /*importer*/, uint64_t offset,
                                 uint64_t bytes) override {
    return exportCuda(form, {range_.base + offset, bytes, range_.gpu});
  }

 private:
  const CudaRange range_;
  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
  mutable MemoryDescription description_;
};

class CudaAllocation final : public Allocation {
 public:
  CudaAllocation(std::shared_ptr<CudaMapping> mapping,
                 std::shared_ptr<const cuda::PrimaryContext> gpu, size_t bytes)
      : mapping_(std::move(mapping)), gpu_(std::move(gpu)), bytes_(bytes) {}

  std::byte* data() const override { return mapping_->data(); }
  size_t bytes() const override { return bytes_; }
  Result<MemoryDescription> describe() const override {
    const cuda::CurrentContext current(*gpu_);
    MemoryDescription description;
    description.device = {DeviceKind::kCuda, gpu_->gpu()};
    description.kind = MemoryKind::kCudaDescriptor;
    PEERLANE_ASSIGN(description.backing, exportDescriptor(mapping_->data()));
    description.backingBytes = mapping_->bytes();
    description.identity = cuda::identityOf(mapping_->data());
    description.text = "GPU memory (allocated here)";
    return description;
  }
  Result<MemoryFacts> facts() const override { return cudaFacts({data(), bytes_, gpu_.get()}); }
  Result<ExportedRange> exportAs(ExportForm form, const Importer& /*importer*/, uint64_t offset,
                                 uint64_t bytes) override {
    return exportCuda(form, {data() + offset, bytes, gpu_.get()});
  }

 private:
  const std::shared_ptr<CudaMapping> mapping_;
  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
  const size_t bytes_;
};

}  // namespace

std::shared_ptr<const cuda::PrimaryContext> CudaProvider::find(int gpu) const {
  const auto found = std::find_if(gpus_.begin(), gpus_.end(),
                                  [gpu](const auto& held) { return held->gpu() == gpu; });
  return found == gpus_.end() ? nullptr : *found;
}

std::string CudaProvider::named() const {
  std::string text;
  for (const auto& gpu : gpus_)
    text += (text.empty() ? "cuda:" : ", cuda:") + std::to_string(gpu->gpu());
  return text;
}

// The piece of a range of other memory that is the GPUs': its end, if at all, because what begins
// in the middle and ends there too lies in addresses that nothing else is mapped at.
Result<MemoryExtent> CudaProvider::tailOf(const void* pointer, size_t bytes) const {
  const auto* const last = static_cast<const std::byte*>(pointer) + bytes - 1;
  PEERLANE_ASSIGN(const PointerFacts facts, factsOf(last));
  const auto gpu = facts.type == CU_MEMORYTYPE_DEVICE ? find(facts.gpu) : nullptr;
  if (gpu == nullptr) return MemoryExtent{};
  const cuda::CurrentContext current(*gpu);
  CUdeviceptr base = 0;
  size_t size = 0;
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuMemGetAddressRange(&base, &size, addressOf(last)), "cuMemGetAddressRange"));
  return MemoryExtent{reinterpret_cast<std::byte*>(base), addressOf(last) + 1 - base};
}

Result<MemoryClaim> CudaProvider::acquire(const void* pointer, size_t bytes, uint64_t /*ticket*/) {
  PEERLANE_ASSIGN(const PointerFacts facts, factsOf(pointer));
  if (facts.managed != 0)
    return Status(Code::kNotSupported,
                  "managed memory (cudaMallocManaged) cannot be registered: it moves between host "
                  "and GPU; use cudaMalloc, VMM or Context::allocate");
  if (facts.type != CU_MEMORYTYPE_DEVICE) {
    PEERLANE_ASSIGN(const MemoryExtent tail, tailOf(pointer, bytes));
    return MemoryClaim::part(tail);
  }
  const auto gpu = find(facts.gpu);
  if (gpu == nullptr)
    return Status(Code::kInvalidArgument, "memory of cuda:" + std::to_string(facts.gpu) +
                                              "; this context was made for " + named() +
                                              " (ContextOptions::devices)");
  const cuda::CurrentContext current(*gpu);
  PEERLANE_ASSIGN(MemoryDescription description, descriptionOf(pointer, bytes, facts));
  const CudaRange range{static_cast<const std::byte*>(pointer), bytes, gpu.get()};
  return MemoryClaim::all(std::make_unique<CudaMemory>(range, gpu, std::move(description)));
}

Result<std::optional<MemoryExtent>> CudaProvider::extentOf(const void* pointer, size_t bytes) {
  PEERLANE_ASSIGN(const PointerFacts facts, factsOf(pointer));
  const auto gpu = facts.type == CU_MEMORYTYPE_DEVICE ? find(facts.gpu) : nullptr;
  if (gpu == nullptr) return std::optional<MemoryExtent>();  // acquire() gives the reason
  const cuda::CurrentContext current(*gpu);
  MemoryExtent extent;
  for (CUdeviceptr at = addressOf(pointer);;) {
    CUdeviceptr base = 0;
    size_t size = 0;
    const bool isNext = api().cuMemGetAddressRange(&base, &size, at) == CUDA_SUCCESS &&
                        (extent.base == nullptr || base == at);
    if (!isNext) return std::optional<MemoryExtent>();
    if (extent.base == nullptr) extent.base = reinterpret_cast<std::byte*>(base);
    at = base + size;
    extent.bytes = at - addressOf(extent.base);
    if (at - addressOf(pointer) >= bytes) return std::optional(extent);
  }
}

Result<std::unique_ptr<Allocation>> CudaProvider::allocate(size_t bytes,
                                                           const AllocateOptions& options) {
  if (options.device.kind != DeviceKind::kCuda)
    return Status(Code::kNotSupported,
                  "the CUDA provider does not allocate on " + options.device.toString());
  for (const auto& gpu : gpus_) {
    if (gpu->gpu() != options.device.index) continue;
    PEERLANE_ASSIGN(auto mapping, CudaMapping::create(bytes, *gpu));
    return std::unique_ptr<Allocation>(
        std::make_unique<CudaAllocation>(std::move(mapping), gpu, bytes));
  }
  return Status(Code::kInvalidArgument, "allocate on " + options.device.toString() +
                                            ": this context was made for " + named() +
                                            " (ContextOptions::devices)");
}

}  // namespace peerlane
