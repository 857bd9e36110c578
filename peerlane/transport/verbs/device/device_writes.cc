// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/device/device_writes.h"

#include <utility>

namespace peerlane {

DeviceWrites::DeviceWrites(const cuda::Gpus& gpus) {
  for (const auto& context : gpus)
    gpus_.push_back(std::make_unique<Gpu>(context, cuda::nicWritesOf(context->gpu())));
}

const DeviceWrites::Gpu* DeviceWrites::find(Device device) const {
  for (const auto& gpu : gpus_)
    if (Device{DeviceKind::kCuda, gpu->context->gpu()} == device) return gpu.get();
  return nullptr;
}

Status DeviceWrites::allowed(Device device) const {
  const Gpu* const gpu = find(device);
  if (gpu == nullptr) return Status::ok();
  if (!gpu->way.isOk())
    return Status(Code::kNotSupported,
                  device.toString() + ": " + std::string(gpu->way.status().message()));
  if (*gpu->way != cuda::NicWrites::kNever) return Status::ok();
  return Status(Code::kNotSupported, device.toString() + ": " + cuda::textOf(*gpu->way));
}

Status DeviceWrites::allowedForAny() const {
  Status first;
  for (const auto& gpu : gpus_) {
    Status allowed = this->allowed({DeviceKind::kCuda, gpu->context->gpu()});
    if (allowed.isOk()) return allowed;
    if (first.isOk()) first = std::move(allowed);
  }
  return first;
}

bool DeviceWrites::needsFlush(Device device) const {
  const Gpu* const gpu = find(device);
  return gpu != nullptr && gpu->way.isOk() && *gpu->way == cuda::NicWrites::kByFlush;
}

void DeviceWrites::use(Device device) {
  if (!needsFlush(device)) return;
  for (const auto& gpu : gpus_)
    if (gpu->context->gpu() == device.index) gpu->isUsed.store(true, std::memory_order_relaxed);
  areFlushed_.store(true, std::memory_order_release);
}

Status DeviceWrites::flush() const {
  if (!areFlushed()) return Status::ok();
  for (const auto& gpu : gpus_)
    if (gpu->isUsed.load(std::memory_order_relaxed))
      PEERLANE_RETURN_IF_ERROR(cuda::flushNicWrites(*gpu->context));
  return Status::ok();
}

std::vector<std::string> DeviceWrites::texts() const {
  std::vector<std::string> all;
  for (const auto& gpu : gpus_) {
    const Status allowed = this->allowed({DeviceKind::kCuda, gpu->context->gpu()});
    all.push_back(allowed.isOk() ? "memory of cuda:" + std::to_string(gpu->context->gpu()) + ": " +
                                       cuda::textOf(*gpu->way)
                                 : "memory of " + std::string(allowed.message()) +
                                       "; it is staged through host memory");
  }
  return all;
}

}  // namespace peerlane
