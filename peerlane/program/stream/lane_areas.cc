// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/lane_areas.h"

#include <algorithm>

namespace peerlane::stream {
namespace {

class LaneAllocation final : public Allocation {
 public:
  LaneAllocation(std::shared_ptr<CudaMapping> block, std::unique_ptr<DescriptorMemory> memory,
                 std::shared_ptr<const cuda::PrimaryContext> gpu, size_t bytes)
      : block_(std::move(block)), memory_(std::move(memory)), gpu_(std::move(gpu)), bytes_(bytes) {}

  std::byte* data() const override { return memory_->data(); }
  size_t bytes() const override { return bytes_; }
  Result<MemoryDescription> describe() const override {
    const cuda::CurrentContext current(*gpu_);
    MemoryDescription description;
    description.device = {DeviceKind::kCuda, gpu_->gpu()};
    description.kind = MemoryKind::kCudaDescriptor;
    PEERLANE_ASSIGN(description.backing, exportDescriptor(block_->data()));
    description.fdOffset = static_cast<uint64_t>(memory_->data() - block_->data());
    description.backingBytes = block_->bytes();
    description.identity = cuda::identityOf(block_->data());
    description.text = "GPU memory (lanes of a communicator)";
    return description;
  }

 private:
  const std::shared_ptr<CudaMapping> block_;
  const std::unique_ptr<DescriptorMemory> memory_;
  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
  const size_t bytes_;
};

}  // namespace

Result<std::unique_ptr<Allocation>> LaneAreas::take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto from = [&](const Block& block) -> std::unique_ptr<Allocation> {
    auto memory = block.arena->tryTake(bytes);
    if (!memory) return nullptr;
    return std::make_unique<LaneAllocation>(block.memory, std::move(memory), gpu_, bytes);
  };
  for (const Block& block : blocks_)
    if (auto taken = from(block)) return taken;
  Block fresh;
  PEERLANE_ASSIGN(fresh.memory, CudaMapping::create(std::max(bytes, kBlockBytes), *gpu_));
  fresh.arena = std::make_shared<DescriptorArena>(gpu_, fresh.memory, 0);
  blocks_.push_back(fresh);
  return from(fresh);
}

}  // namespace peerlane::stream
