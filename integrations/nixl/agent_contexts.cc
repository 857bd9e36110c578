// SPDX-License-Identifier: Apache-2.0
#include "integrations/nixl/agent_contexts.h"

#include <utility>

namespace peerlane::nixl {
namespace {

// A port can be taken once.
std::string withAnyPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  return colon == std::string::npos ? address : address.substr(0, colon) + ":0";
}

}  // namespace

Result<std::unique_ptr<Context>> AgentContexts::make(std::vector<Device> devices,
                                                     std::vector<std::string> listen) const {
  ContextOptions options;
  options.listen = std::move(listen);
  // Those of GPUs move host memory for notifications alone.
  if (devices.empty()) options.copyThreads = copyThreads_;
  options.devices = std::move(devices);
  PEERLANE_ASSIGN(auto context, Context::create(std::move(options)));
  context->onPeer(onPeer_);
  return context;
}

Result<std::unique_ptr<AgentContexts>> AgentContexts::create(const AgentOptions& options,
                                                             std::function<void(Peer)> onPeer) {
  std::unique_ptr<AgentContexts> contexts(
      new AgentContexts(std::move(onPeer), options.copyThreads));
  for (const std::string& address : options.listen)
    contexts->anyPort_.push_back(withAnyPort(address));
  PEERLANE_ASSIGN(contexts->host_, contexts->make({}, options.listen));
  return contexts;
}

Result<Context*> AgentContexts::of(Device device) {
  if (device.kind == DeviceKind::kHost) return host_.get();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const OfGpu& gpu : gpus_)
    if (gpu.device == device) return gpu.context.get();
  PEERLANE_ASSIGN(auto context, make({device}, anyPort_));
  gpus_.push_back({device, std::move(context)});
  return gpus_.back().context.get();
}

Context* AgentContexts::anyGpu() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return gpus_.empty() ? nullptr : gpus_.front().context.get();
}

Result<Context*> AgentContexts::twinOf(Context& context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Context>& twin = twins_[&context];
  if (twin) return twin.get();
  std::vector<Device> devices;
  for (const OfGpu& gpu : gpus_)
    if (gpu.context.get() == &context) devices.push_back(gpu.device);
  PEERLANE_ASSIGN(twin, make(std::move(devices), {}));
  return twin.get();
}

}  // namespace peerlane::nixl
