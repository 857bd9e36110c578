// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/link_set.h"

#include <algorithm>

namespace peerlane {

std::string LinkSet::refusalsOfDevices(const char* before, const char* after) const {
  std::string text;
  for (const control::Refusal& refusal : refused_)
    if (refusal.transport == "cuda_ipc") text += before + refusal.reason + after;
  return text;
}

std::string LinkSet::whyStaged(const RegionReference& region, bool byDevice) const {
  if (region.device.kind != DeviceKind::kHost) {
    if (!device_)
      return "no link between the two reaches GPUs" + refusalsOfDevices(" (cuda_ipc: ", ")");
    if (region.kind == MemoryKind::kCudaPrivate && !process_.facts().sameProcess)
      return "the peer's memory was not made for export, or its driver exports none of it "
             "(Region::description at its owner says more)";
    if (region.kind && isByFabric(*region.kind)) return device_->traits().fabricRefused;
    return region.kind == MemoryKind::kCudaHandle ? device_->traits().legacyRefused : "";
  }
  if (!byDevice || host_->traits().transport == "self") return {};
  if (!host_->traits().mapsRegions)
    return "link " + host_->traits().transport + " maps no memory that a GPU could reach";
  if (region.kind == MemoryKind::kPrivate)
    return "it is private memory of the peer; Context::allocate and memfd give memory that can be "
           "mapped";
  return {};
}

std::string LinkSet::whyOutOfReach(const MemoryDescription& memory) const {
  if (isCuda(memory.kind))
    return memory.kind == MemoryKind::kCudaPrivate && !process_.facts().sameProcess ? memory.whyNot
                                                                                    : "";
  const LinkTraits& traits = host_->traits();
  if (traits.transport == "self") return {};
  if (!traits.mapsRegions)
    return "link " + traits.transport + " maps no memory that a GPU could reach";
  return memory.kind == MemoryKind::kShared ? "" : "it is private memory of this process";
}

Result<RemoteMemory> LinkSet::attach(Grant grant) {
  if (!isCuda(grant.region.kind)) return host_->attach(std::move(grant));
  if (device_) return device_->attach(std::move(grant));
  std::string why = "the region is GPU memory, and this side has no link to it" +
                    refusalsOfDevices("; cuda_ipc: ", "");
  if (env_.around.devices.empty()) why += "; name a GPU in ContextOptions::devices";
  return Status(Code::kNotSupported, why);
}

void LinkSet::close(Code code) {
  if (host_) host_->close(code);
  if (device_) device_->close(code);
}

void LinkSet::abandon() {
  (void)host_.release();
  (void)device_.release();
}

void LinkSet::refuse(std::string transport, std::string reason) {
  refused_.push_back({std::move(transport), std::move(reason)});
}

bool LinkSet::isRefused(const std::string& transport) const {
  return std::any_of(refused_.begin(), refused_.end(),
                     [&](const auto& refusal) { return refusal.transport == transport; });
}

}  // namespace peerlane
