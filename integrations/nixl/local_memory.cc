// SPDX-License-Identifier: Apache-2.0
#include "integrations/nixl/local_memory.h"

#include <algorithm>
#include <utility>

#include "integrations/nixl/agent_blobs.h"
#include "peerlane/memory/gpu_list.h"

namespace peerlane::nixl {
namespace {

// What the memory is, as the driver says: the number of a NIXL user is any number.
Result<Device> deviceOf(const abi::DescribedPiece& piece, abi::MemoryType type) {
  if (type == abi::MemoryType::kDram || piece.bytes == 0) return Device{};
  if (type != abi::MemoryType::kVram)
    return Status(Code::kNotSupported, "memory of type " +
                                           std::to_string(static_cast<uint32_t>(type)) +
                                           "; accepted are DRAM and VRAM");
  PEERLANE_ASSIGN(const int gpu, gpuOf(reinterpret_cast<const void*>(piece.address)));
  return Device{DeviceKind::kCuda, gpu};
}

}  // namespace

std::byte* LocalMemory::data() const {
  return reinterpret_cast<std::byte*>(address_);
}

Result<std::shared_ptr<LocalMemory>> LocalMemory::create(AgentContexts& contexts,
                                                         const abi::DescribedPiece& piece,
                                                         abi::MemoryType type) {
  PEERLANE_ASSIGN(const Device device, deviceOf(piece, type));
  PEERLANE_ASSIGN(Context * home, contexts.of(device));
  std::shared_ptr<LocalMemory> memory(new LocalMemory(piece, device, home));
  if (piece.bytes == 0) return memory;
  auto region = home->registerRegion(memory->data(), piece.bytes, Access::kRemoteReadWrite);
  // Memory that this process may only read.
  if (region.status().code() == Code::kPermissionDenied)
    region = home->registerRegion(memory->data(), piece.bytes, Access::kRemoteRead);
  PEERLANE_ASSIGN(memory->region_, std::move(region));
  return memory;
}

Result<const Region*> LocalMemory::regionOf(Context& context) {
  if (&context == home_) return &region_;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (isEnded_) return Status(Code::kClosed, "the memory was deregistered");
  const auto known = others_.find(&context);
  if (known != others_.end()) return &known->second;
  PEERLANE_ASSIGN(Region region, context.registerRegion(data(), bytes_, region_.access()));
  return &others_.emplace(&context, std::move(region)).first->second;
}

std::string LocalMemory::publicData() const {
  PublicData data;
  if (region_) data.reference = region_.share();
  if (!isOnHost()) data.ticket = home_->ticket();
  return data.encode();
}

std::string LocalMemory::description() const {
  return region_ ? region_.description() : "no bytes";
}

Status LocalMemory::endBy(std::chrono::steady_clock::time_point deadline) {
  const auto left = [&] {
    return std::max<std::chrono::nanoseconds>(deadline - std::chrono::steady_clock::now(), {});
  };
  Status status = home_->unregister(region_, left());
  for (const auto& [context, region] : others_) {  // no more of them: isEnded_
    Status other = context->unregister(region, left());
    if (status.isOk()) status = std::move(other);
  }
  return status;
}

Status LocalMemory::end(std::chrono::nanoseconds timeout) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    isEnded_ = true;
  }
  if (!region_) return Status::ok();
  const auto now = std::chrono::steady_clock::now();
  Status status = endBy(now);
  // To wait for a silent peer would hold up the agent for each region of it, and change nothing.
  return status.code() == Code::kTimeout ? endBy(now + timeout) : status;
}

}  // namespace peerlane::nixl
