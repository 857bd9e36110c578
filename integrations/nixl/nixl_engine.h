// SPDX-License-Identifier: Apache-2.0
//
// NixlEngine: the back end of one agent of NIXL: translates the agent's calls into contexts, peers,
// regions and transfers. Thread-safe, in every synchronisation mode of the agent; calls for one
// request come one at a time.
//
// In a forked child the agent is the parent's: its threads are not there, and locks may be held for
// ever. Calls that end something do nothing there, all others are refused.
#pragma once

#include <atomic>
#include <memory>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "integrations/nixl/agent_contexts.h"
#include "integrations/nixl/agent_mail.h"
#include "integrations/nixl/agent_options.h"
#include "integrations/nixl/block_lists.h"
#include "integrations/nixl/leaving_requests.h"
#include "integrations/nixl/local_memory.h"
#include "integrations/nixl/nixl_abi.h"
#include "integrations/nixl/nixl_answer.h"
#include "integrations/nixl/nixl_request.h"
#include "integrations/nixl/remote_agent.h"

namespace peerlane::nixl {

class NixlEngine final : public abi::Engine {
 public:
  // Fails, with the reason in the log, by setFailed().
  explicit NixlEngine(const abi::InitParams& init);
  ~NixlEngine() override;

  // As the plug-in destroys it: in a forked child it is left as it is.
  static void destroy(NixlEngine* engine);

  bool supportsRemote() const override { return true; }
  bool supportsLocal() const override { return true; }
  bool supportsNotifications() const override { return true; }
  std::vector<abi::MemoryType> memoryTypes() const override;
  abi::Answer registerMemory(const abi::DescribedPiece& piece, const abi::MemoryType& type,
                             abi::Metadata*& out) override;
  abi::Answer deregisterMemory(abi::Metadata* local) override;
  abi::Answer connect(const std::string& agent) override;
  abi::Answer disconnect(const std::string& agent) override;
  abi::Answer unload(abi::Metadata* loaded) override;
  abi::Answer prepare(const abi::Direction& direction, const abi::TransferList& local,
                      const abi::TransferList& remote, const std::string& agent,
                      abi::RequestHandle*& handle,
                      const abi::PostArguments* arguments) const override;
  abi::Answer post(const abi::Direction& direction, const abi::TransferList& local,
                   const abi::TransferList& remote, const std::string& agent,
                   abi::RequestHandle*& handle, const abi::PostArguments* arguments) const override;
  abi::Answer check(abi::RequestHandle* handle) const override;
  abi::Answer release(abi::RequestHandle* handle) const override;
  abi::Answer publicData(const abi::Metadata* local, std::string& out) const override;
  abi::Answer connectionInfo(std::string& out) const override;
  abi::Answer loadConnectionInfo(const std::string& agent, const std::string& info) override;
  abi::Answer loadRemote(const abi::DescribedPiece& piece, const abi::MemoryType& type,
                         const std::string& agent, abi::Metadata*& out) override;
  abi::Answer loadLocal(abi::Metadata* local, abi::Metadata*& out) override;
  abi::Answer takeNotifications(abi::Notifications& out) override;
  abi::Answer sendNotification(const std::string& agent, const std::string& message) const override;
  abi::Answer query(const abi::RegistrationList& pieces,
                    std::vector<std::optional<abi::Params>>& out) const override;
  abi::Answer estimate(const abi::Direction& direction, const abi::TransferList& local,
                       const abi::TransferList& remote, const std::string& agent,
                       abi::RequestHandle* const& handle, std::chrono::microseconds& duration,
                       std::chrono::microseconds& margin, abi::CostMethod& method,
                       const void* arguments) const override;

 private:
  // What the agent's metadata pointers name. NIXL up to 1.4 hands out pointers that it freed: so
  // none is looked into before it was found in the table.
  struct Loaded final : abi::Metadata {
    Loaded() : Metadata(false) {}
    std::shared_ptr<LocalMemory> local;
    std::shared_ptr<RemoteMemory> remote;
  };

  Status begin(const abi::InitParams& init);
  bool isOfThisProcess() const { return contexts_->host().isOfThisProcess(); }
  abi::Answer refuseInChild() const;
  abi::Answer refuse(const std::string& what, const Status& status) const;
  abi::Metadata* keep(std::unique_ptr<Loaded> loaded);
  std::unique_ptr<Loaded> drop(const abi::Metadata* metadata);
  std::shared_ptr<LocalMemory> localOf(const abi::Metadata* metadata) const;
  // The agent of that name, this one included. kInvalidArgument: its metadata was not loaded.
  Result<std::shared_ptr<RemoteAgent>> agentNamed(const std::string& name) const;
  void publishRoute(const std::string& name, const Route& route, const std::string& ofGpus);
  void joinGpus(const std::string& name, const RemoteMemory& memory);
  Status fill(NixlRequest& request, const RemoteAgent& agent, const abi::TransferList& local,
              const abi::TransferList& remote) const;

  AgentOptions options_;
  LimitedLines touched_;      // a list of memory is deregistered one by one
  mutable BlockLists lists_;  // outlives the requests
  mutable LeavingRequests leaving_;
  // Before the contexts: their last callbacks may use it.
  std::unique_ptr<AgentMail> mail_;
  std::unique_ptr<AgentContexts> contexts_;
  mutable std::shared_mutex mutex_;
  std::unordered_map<const abi::Metadata*, std::unique_ptr<Loaded>> table_;
  mutable std::unordered_map<std::string, std::shared_ptr<RemoteAgent>> agents_;
};

}  // namespace peerlane::nixl
