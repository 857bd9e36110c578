// SPDX-License-Identifier: Apache-2.0
#include "peerlane/memory/cuda_provider.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "peerlane/memory/cuda_mapping.h"
#include "peerlane/os/cuda_driver.h"

namespace peerlane {
namespace {

using cuda::api;
using cuda::check;

CUdeviceptr addressOf(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

// What the driver says of one address. `type` 0: not the driver's.
struct PointerFacts {
  unsigned type = 0;
  unsigned managed = 0;
  int gpu = -1;
  unsigned legacyCapable = 0;
  unsigned long long identity = 0;
};

Result<PointerFacts> factsOf(const void* pointer) {
  PointerFacts facts;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                 CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                 CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                 CU_POINTER_ATTRIBUTE_BUFFER_ID};
  void* values[] = {&facts.type, &facts.managed, &facts.gpu, &facts.legacyCapable, &facts.identity};
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuPointerGetAttributes(std::size(names), names, values, addressOf(pointer)),
            "cuPointerGetAttributes"));
  return facts;
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
    description.text += "; no IPC handle: " + std::string(got.message());
    return Status::ok();
  }
  PEERLANE_ASSIGN(description.backing, exportDescriptor(reinterpret_cast<const void*>(base)));
  if (description.backing) {
    description.kind = MemoryKind::kCudaDescriptor;
    description.text += ", VMM (descriptor)";
  } else {
    description.text +=
        "; not mapped by peers: neither cudaMalloc memory nor made for export as a descriptor";
  }
  return Status::ok();
}

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

 private:
  const std::shared_ptr<CudaMapping> mapping_;
  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
  const size_t bytes_;
};

}  // namespace

const cuda::PrimaryContext* CudaProvider::find(int gpu) const {
  const auto found = std::find_if(gpus_.begin(), gpus_.end(),
                                  [gpu](const auto& held) { return held->gpu() == gpu; });
  return found == gpus_.end() ? nullptr : found->get();
}

std::string CudaProvider::named() const {
  std::string text;
  for (const auto& gpu : gpus_)
    text += (text.empty() ? "cuda:" : ", cuda:") + std::to_string(gpu->gpu());
  return text;
}

Result<std::optional<MemoryDescription>> CudaProvider::classify(const void* pointer, size_t bytes) {
  PEERLANE_ASSIGN(const PointerFacts facts, factsOf(pointer));
  if (facts.managed != 0)
    return Status(Code::kNotSupported,
                  "managed memory (cudaMallocManaged) cannot be registered: it moves between host "
                  "and GPU; use cudaMalloc, VMM or Context::allocate");
  if (facts.type != CU_MEMORYTYPE_DEVICE) return std::optional<MemoryDescription>();
  const cuda::PrimaryContext* gpu = find(facts.gpu);
  if (gpu == nullptr)
    return Status(Code::kInvalidArgument, "memory of cuda:" + std::to_string(facts.gpu) +
                                              "; this context was made for " + named() +
                                              " (ContextOptions::devices)");
  const cuda::CurrentContext current(*gpu);
  CUdeviceptr base = 0;
  size_t size = 0;
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuMemGetAddressRange(&base, &size, addressOf(pointer)), "cuMemGetAddressRange"));
  const uint64_t offset = addressOf(pointer) - base;
  if (bytes > size - offset) {
    PEERLANE_ASSIGN(const PointerFacts last,
                    factsOf(static_cast<const std::byte*>(pointer) + bytes - 1));
    if (last.type != CU_MEMORYTYPE_DEVICE)
      return Status(Code::kInvalidArgument,
                    std::to_string(bytes) +
                        " bytes run past the end of the GPU allocation, which "
                        "has " +
                        std::to_string(size - offset) + " from here");
    return Status(Code::kNotSupported,
                  "the range is made of several physical allocations (expandable segments); "
                  "register each by itself: the first ends after " +
                      std::to_string(size - offset) + " bytes");
  }
  MemoryDescription description;
  description.device = {DeviceKind::kCuda, facts.gpu};
  description.kind = MemoryKind::kCudaPrivate;
  description.fdOffset = offset;
  description.identity = facts.identity;
  description.text = "memory of cuda:" + std::to_string(facts.gpu);
  PEERLANE_RETURN_IF_ERROR(describeExport(base, size, facts, description));
  return std::optional(std::move(description));
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
