// SPDX-License-Identifier: Apache-2.0
//
// TcpLink: an agent link over one data connection or several, by which large transfers are shared
// (StripedAgent). It works once the first one is made, and shares among those that are; the first
// one that fails ends it. Threads as for Link.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "peerlane/transport/link.h"
#include "peerlane/transport/striped_agent.h"
#include "peerlane/transport/tcp/stream_keys.h"
#include "peerlane/transport/tcp/tcp_connection.h"
#include "peerlane/transport/transport.h"

namespace peerlane {

class TcpLink final : public Link {
 public:
  // `name` is for log lines. `keys`: of each socket, if it is encrypted; else one nothing for each.
  // Then exactly one of dial() and, for each socket, await() of its connection.
  TcpLink(const LinkSurroundings& surroundings, const std::string& name,
          std::span<const std::optional<StreamKeys>> keys);

  ~TcpLink() override { close(Code::kClosed); }

  // How the listener is reached: as TcpDialer::Order, with the tokens of the offers.
  struct Route {
    std::vector<SocketAddress> addresses;
    TcpToken present{};
    TcpToken expect{};
    std::chrono::nanoseconds patience{};  // with each socket
  };
  // One socket after the other, so that a listener has one guest of a link at a time, and the later
  // ones where the first was made.
  void dial(Route route);
  static LinkAbilities abilities();
  uint32_t sockets() const { return static_cast<uint32_t>(connections_.size()); }
  uint32_t socketsMade() const { return stripes_.made(); }
  TcpConnection& connection(uint32_t socket) { return *connections_[socket]; }

  const LinkTraits& traits() const override { return traits_; }
  Result<LinkPart> grant(const RegionRecord& region) override;
  Result<RemoteMemory> attach(Grant grant) override;
  void detach(RemoteMemory& memory) override;
  bool poll() override { return stripes_.poll(); }
  Served serve(AgentWork& work) override { return stripes_.serve(work); }
  void abandon(AgentWork& work, Code code) override { stripes_.abandon(work, code); }
  Status health() const override;
  void close(Code code) override;

 private:
  std::vector<std::unique_ptr<TcpConnection>> makeConnections(
      const LinkSurroundings& surroundings, const std::string& name,
      std::span<const std::optional<StreamKeys>> keys);
  void dialSocket(uint32_t socket);
  void made(uint32_t socket, const Result<SocketAddress>& end);

  const LinkTraits traits_;
  std::optional<Route> route_;  // of the side that dials
  std::array<bool, kTcpMostSockets> isMade_{};
  const std::vector<std::unique_ptr<TcpConnection>> connections_;
  StripedAgent stripes_;  // of their agents
};

}  // namespace peerlane
