// SPDX-License-Identifier: Apache-2.0
#include "tools/trial/trial_memory.h"

namespace peerlane {

TrialRegions::~TrialRegions() {
  for (Slot& slot : slots_) drop(slot);
}

Result<Region> TrialRegions::get(TrialMemory memory, uint64_t bytes) {
  Slot& slot = slots_[static_cast<size_t>(memory)];
  if (slot.region && slot.region.bytes() >= bytes) return slot.region;
  drop(slot);
  PEERLANE_RETURN_IF_ERROR(make(slot, memory, bytes));
  return slot.region;
}

Status TrialRegions::make(Slot& slot, TrialMemory memory, uint64_t bytes) {
  if (isGpu(memory) && device_.kind == DeviceKind::kHost)
    return Status(Code::kNotSupported, "this side was started without a GPU");
  switch (memory) {
    case TrialMemory::kShared: {
      PEERLANE_ASSIGN(slot.region, context_.allocate(bytes));
      break;
    }
    case TrialMemory::kPrivate: {
      slot.heap = std::make_unique_for_overwrite<std::byte[]>(bytes);
      PEERLANE_ASSIGN(slot.region,
                      context_.registerRegion(slot.heap.get(), bytes, Access::kRemoteReadWrite));
      break;
    }
    case TrialMemory::kGpuShared: {
      PEERLANE_ASSIGN(slot.region, context_.allocate(bytes, {.device = device_}));
      break;
    }
    case TrialMemory::kGpuMalloc: {
      PEERLANE_ASSIGN(slot.gpuHeap, allocateByRuntime(device_, bytes));
      PEERLANE_ASSIGN(slot.region,
                      context_.registerRegion(slot.gpuHeap.get(), bytes, Access::kRemoteReadWrite));
      break;
    }
  }
  return Status::ok();
}

void TrialRegions::drop(Slot& slot) {
  if (!slot.region) return;
  // Memory that somebody may still write to is not given back to the heap.
  if (!context_.unregister(slot.region, std::chrono::seconds(2)).isOk()) {
    (void)slot.heap.release();
    (void)slot.gpuHeap.release();
  }
  slot = {};
}

Result<DeviceStream> TrialRegions::streamFor(TrialMemory memory) {
  if (!isGpu(memory)) return DeviceStream();
  if (!stream_) {
    PEERLANE_ASSIGN(stream_, makeRuntimeStream(device_));
  }
  return DeviceStream::cuda(stream_.get());
}

std::span<std::byte> TrialRegions::mirror(uint64_t bytes) {
  if (mirrorBytes_ < bytes) {
    mirror_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    mirrorBytes_ = bytes;
  }
  return {mirror_.get(), bytes};
}

Status TrialRegions::write(const Region& region, uint64_t bytes,
                           const std::function<void(std::span<std::byte>)>& fill) {
  if (region.device().kind == DeviceKind::kHost) {
    fill({region.data(), bytes});
    return Status::ok();
  }
  const std::span<std::byte> content = mirror(bytes);
  fill(content);
  return copyToDevice(region.device(), region.data(), content);
}

Status TrialRegions::read(const Region& region, uint64_t bytes,
                          const std::function<void(std::span<const std::byte>)>& look) {
  if (region.device().kind == DeviceKind::kHost) {
    look({region.data(), bytes});
    return Status::ok();
  }
  const std::span<std::byte> content = mirror(bytes);
  PEERLANE_RETURN_IF_ERROR(copyFromDevice(region.device(), content, region.data()));
  look(content);
  return Status::ok();
}

}  // namespace peerlane
