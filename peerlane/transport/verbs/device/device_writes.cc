// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/device/device_writes.h"

#include <utility>

namespace peerlane {

DeviceWrites::DeviceWrites(const cuda::Gpus& gpus,
                           const std::shared_ptr<const ProtectionDomain>& domain,
                           const Config& config)
    : loop_(Status(Code::kNotSupported, "no GPU needs it")) {
  bool isRead = false;
  for (const auto& context : gpus) {
    gpus_.push_back(std::make_unique<Gpu>(context, cuda::nicWritesOf(context->gpu())));
    const auto& way = gpus_.back()->way;
    isRead |= way.isOk() && *way == cuda::NicWrites::kByReading;
  }
  if (isRead) loop_ = LoopRead::create(domain, config);
}

DeviceWrites::Gpu* DeviceWrites::find(Device device) const {
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
  if (*gpu->way != cuda::NicWrites::kByReading || loop_.isOk()) return Status::ok();
  return Status(Code::kNotSupported,
                device.toString() + ": " + cuda::textOf(*gpu->way) +
                    ", which is not possible: " + std::string(loop_.status().message()));
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
  return gpu != nullptr && gpu->way.isOk() && *gpu->way != cuda::NicWrites::kOrdered;
}

void DeviceWrites::use(Device device, uint32_t key, uint64_t address) {
  if (!needsFlush(device)) return;
  Gpu& gpu = *find(device);
  {
    const MutexLock lock(gpu.mutex);
    gpu.registered.push_back({key, address});
  }
  gpu.isUsed.store(true, std::memory_order_relaxed);
  areFlushed_.store(true, std::memory_order_release);
}

void DeviceWrites::letGo(Device device, uint32_t key) {
  if (!needsFlush(device)) return;
  Gpu& gpu = *find(device);
  const MutexLock lock(gpu.mutex);
  std::erase_if(gpu.registered, [key](const Registered& each) { return each.key == key; });
}

// Any of the memory will do. Where none is left, nobody is told of bytes in it.
Status DeviceWrites::readBack(const Gpu& gpu) const {
  const MutexLock lock(gpu.mutex);
  if (gpu.registered.empty()) return Status::ok();
  return (*loop_)->read(gpu.registered.back().key, gpu.registered.back().address);
}

Status DeviceWrites::flush() const {
  if (!areFlushed()) return Status::ok();
  for (const auto& gpu : gpus_)
    if (gpu->isUsed.load(std::memory_order_relaxed))
      PEERLANE_RETURN_IF_ERROR(*gpu->way == cuda::NicWrites::kByReading
                                   ? readBack(*gpu)
                                   : cuda::flushNicWrites(*gpu->context));
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
