// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/message/lane_areas.h"

#include <algorithm>

#include "peerlane/memory/cuda/cuda_export.h"

namespace peerlane::stream {

class LaneAreas::Area final : public Allocation {
 public:
  Area(std::shared_ptr<const Block> block, std::unique_ptr<DescriptorMemory> memory, size_t bytes)
      : block_(std::move(block)), memory_(std::move(memory)), bytes_(bytes) {}

  std::byte* data() const override { return memory_->data(); }
  size_t bytes() const override { return bytes_; }
  Result<MemoryDescription> describe() const override {
    MemoryDescription description;
    description.device = block_->device;
    description.kind = MemoryKind::kCudaDescriptor;
    PEERLANE_ASSIGN(description.backing, block_->descriptor.dup());
    description.fdOffset = static_cast<uint64_t>(memory_->data() - block_->memory->data());
    description.backingBytes = block_->memory->bytes();
    description.identity = block_->identity;
    description.isKept = true;
    description.text = "GPU memory (lanes of a communicator)";
    return description;
  }
  Result<MemoryFacts> facts() const override {
    return cudaFacts({data(), bytes_, block_->gpu.get()});
  }
  Result<ExportedRange> exportAs(ExportForm form, const Importer& /*importer*/, uint64_t offset,
                                 uint64_t bytes) override {
    return exportCuda(form, {data() + offset, bytes, block_->gpu.get()});
  }

 private:
  const std::shared_ptr<const Block> block_;
  const std::unique_ptr<DescriptorMemory> memory_;
  const size_t bytes_;
};

Result<std::unique_ptr<Allocation>> LaneAreas::take(size_t bytes) {
  const MutexLock lock(mutex_);
  const auto from = [&](const std::shared_ptr<const Block>& block) -> std::unique_ptr<Allocation> {
    auto memory = block->arena->tryTake(bytes);
    if (!memory) return nullptr;
    return std::make_unique<Area>(block, std::move(memory), bytes);
  };
  for (const auto& block : blocks_)
    if (auto taken = from(block)) return taken;
  auto fresh = std::make_shared<Block>();
  PEERLANE_ASSIGN(fresh->memory, CudaMapping::create(std::max(bytes, kBlockBytes), *gpu_));
  PEERLANE_ASSIGN(fresh->descriptor, exportDescriptor(fresh->memory->data()));
  fresh->arena = std::make_shared<DescriptorArena>(gpu_, fresh->memory, 0);
  fresh->gpu = gpu_;
  fresh->device = {DeviceKind::kCuda, gpu_->gpu()};
  fresh->identity = cuda::identityOf(fresh->memory->data());
  blocks_.push_back(fresh);
  return from(fresh);
}

}  // namespace peerlane::stream
