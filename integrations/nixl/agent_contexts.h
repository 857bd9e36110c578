// SPDX-License-Identifier: Apache-2.0
//
// AgentContexts: the contexts of one agent: one for host memory, made at once, because the agent
// asks for its connection info first and keeps the answer for ever; and one for each GPU, made when
// memory of that GPU is first registered, so that no CUDA context appears on a GPU that the agent
// does not use. Thread-safe. Owner: the back end; all handles into the contexts go before it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "integrations/nixl/agent_options.h"
#include "peerlane/session/context/context.h"

namespace peerlane::nixl {

class AgentContexts {
 public:
  // `onPeer`: as Context::onPeer, of every context.
  static Result<std::unique_ptr<AgentContexts>> create(const AgentOptions& options,
                                                       std::function<void(Peer)> onPeer);

  Context& host() const { return *host_; }
  // The context for memory of `device`, made if need be. Errors of Context::create.
  Result<Context*> of(Device device);
  // Any context with a GPU, or null: to move host memory to or from a GPU of a peer.
  Context* anyGpu() const;
  // A second context for the devices of `context`, made if need be: a context is no peer of its
  // own, so transfers inside this agent are between a context and its twin.
  Result<Context*> twinOf(Context& context);

 private:
  AgentContexts(std::function<void(Peer)> onPeer, uint32_t copyThreads)
      : onPeer_(std::move(onPeer)), copyThreads_(copyThreads) {}
  Result<std::unique_ptr<Context>> make(std::vector<Device> devices,
                                        std::vector<std::string> listen) const;

  std::vector<std::string> anyPort_;  // the interfaces to listen on, for further contexts
  const std::function<void(Peer)> onPeer_;
  const uint32_t copyThreads_;
  std::unique_ptr<Context> host_;
  struct OfGpu {
    Device device;
    std::unique_ptr<Context> context;
  };
  mutable std::mutex mutex_;
  std::vector<OfGpu> gpus_;  // grows only
  std::map<const Context*, std::unique_ptr<Context>> twins_;
};

}  // namespace peerlane::nixl
