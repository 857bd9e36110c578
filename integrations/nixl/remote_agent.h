// SPDX-License-Identifier: Apache-2.0
//
// RemoteAgent: an agent whose metadata this one loaded: the connections to its contexts.
// RemoteMemory: memory of it, imported for each context of this side that uses it. Both
// thread-safe; requests hold them, so the connections of an agent that was removed end with its
// last request.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "integrations/nixl/agent_blobs.h"
#include "peerlane/session/context/context.h"

namespace peerlane::nixl {

class RemoteAgent {
 public:
  // The context of this side for the connection to the other's host context; called once it is
  // needed.
  using Way = std::function<Result<Context*>()>;

  RemoteAgent(std::string name, const ConnectionInfo& info, Way way,
              std::chrono::nanoseconds timeout)
      : name_(std::move(name)), ticket_(info.ticket), way_(std::move(way)), timeout_(timeout) {}
  ~RemoteAgent();
  RemoteAgent(const RemoteAgent&) = delete;
  RemoteAgent& operator=(const RemoteAgent&) = delete;

  const std::string& name() const { return name_; }
  const std::string& ticket() const { return ticket_; }
  // The connection to the host context there, which notifications take, made if need be; it proves
  // that a link exists. Errors of Context::connect.
  Result<Peer> mail();
  // The connection from `here` to the context there whose ticket that is (empty: the host's), made
  // if need be. Errors of Context::connect.
  Result<Peer> peer(Context& here, const std::string& ticket);
  // Waits until all that was posted has ended, notifications among it.
  void settle(std::chrono::nanoseconds timeout);

 private:
  const std::string name_;
  const std::string ticket_;
  const Way way_;
  const std::chrono::nanoseconds timeout_;
  std::mutex mutex_;
  std::map<std::pair<Context*, std::string>, Peer> peers_;
};

class RemoteMemory {
 public:
  // `agent`: null for one that cannot be reached; transfers to its memory are refused. Errors:
  // kCorrupt, kNotSupported of `publicData`.
  static Result<std::shared_ptr<RemoteMemory>> create(std::shared_ptr<RemoteAgent> agent,
                                                      uint64_t address,
                                                      const std::string& publicData);

  uint64_t address() const { return address_; }
  bool isOnHost() const { return data_.ticket.empty(); }
  // Whether it belongs to the context with that id.
  bool isOf(const std::array<uint8_t, 16>& context) const { return context == owner_; }
  bool isReachable() const { return agent_ != nullptr; }
  RemoteAgent& agent() const { return *agent_; }

  struct Imported {
    Peer peer;
    const RemoteRegion* region = nullptr;  // lifetime: the memory's
  };
  // The connection from `here` to its owner, made if need be. Only of memory that is reachable.
  Result<Peer> peer(Context& here) const { return agent_->peer(here, data_.ticket); }
  // As `here` reaches it. Sends nothing to the owner beyond a connection that is missing.
  Result<Imported> from(Context& here);

 private:
  RemoteMemory(std::shared_ptr<RemoteAgent> agent, uint64_t address, PublicData data)
      : agent_(std::move(agent)), address_(address), data_(std::move(data)) {}

  const std::shared_ptr<RemoteAgent> agent_;
  const uint64_t address_;
  const PublicData data_;
  std::array<uint8_t, 16> owner_{};
  std::mutex mutex_;
  struct Import {
    Peer peer;
    RemoteRegion region;
  };
  std::map<Context*, Import> imports_;  // nodes stay where they are
};

}  // namespace peerlane::nixl
