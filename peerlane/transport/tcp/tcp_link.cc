// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/tcp/tcp_link.h"

#include <algorithm>
#include <utility>

namespace peerlane {
namespace {

std::string protection(const std::optional<StreamKeys>& keys) {
  if (!keys) return "not encrypted";
  return std::string("encrypted (") + aeadCipherName(keys->cipher) + ")";
}

std::vector<std::unique_ptr<TcpConnection>> connectionsOf(
    const LinkSurroundings& surroundings, const std::string& name,
    std::span<const std::optional<StreamKeys>> keys) {
  std::vector<std::unique_ptr<TcpConnection>> connections;
  for (const std::optional<StreamKeys>& own : keys) {
    std::string numbered = name;
    if (keys.size() > 1) numbered += ", socket " + std::to_string(connections.size());
    connections.push_back(
        std::make_unique<TcpConnection>(surroundings, std::move(numbered), own ? &*own : nullptr));
  }
  return connections;
}

std::vector<FrameAgent*> agentsOf(const std::vector<std::unique_ptr<TcpConnection>>& connections) {
  std::vector<FrameAgent*> agents;
  for (const auto& connection : connections) agents.push_back(&connection->agent());
  return agents;
}

}  // namespace

TcpLink::TcpLink(const LinkSurroundings& surroundings, const std::string& name,
                 std::span<const std::optional<StreamKeys>> keys)
    : traits_{.transport = "tcp",
              .scope = LinkScope::kNetwork,
              .abilities = abilities(),
              .peerWritesAlone = false,
              .agentEngine = "socket",
              .protection = protection(keys.front())},
      connections_(connectionsOf(surroundings, name, keys)),
      stripes_(agentsOf(connections_), surroundings.copyTeam, surroundings.workArrived) {}

void TcpLink::dial(TcpDialer::Order order) {
  order_ = std::move(order);
  deadline_ = std::chrono::steady_clock::now() + order_.patience;
  dialFrom(0);
}

void TcpLink::dialFrom(uint32_t socket) {
  constexpr std::chrono::nanoseconds kLeast = std::chrono::milliseconds(1);
  order_.socket = static_cast<uint16_t>(socket);
  order_.patience =
      std::max<std::chrono::nanoseconds>(deadline_ - std::chrono::steady_clock::now(), kLeast);
  connections_[socket]->dial(order_, [this, socket](const SocketAddress& address) {
    order_.addresses = {address};
    if (socket + 1 < sockets()) dialFrom(socket + 1);
  });
}

LinkAbilities TcpLink::abilities() {
  LinkAbilities abilities;
  abilities.allow(MemoryPlace::kHost, {MemoryExport::kNone, MemoryExport::kDescriptor},
                  {Ability::kGrants, Ability::kAttaches, Ability::kByAgent, Ability::kFromHere,
                   Ability::kSendsWords},
                  Enforcer::kOwner);
  return abilities;
}

// Frames name regions by their numbers: the peer learns no address.
Result<LinkPart> TcpLink::grant(const RegionRecord& /*region*/) {
  return LinkPart();
}

Result<RemoteMemory> TcpLink::attach(Grant grant) {
  if (!grant.own.blob.empty())
    return Status(Code::kCorrupt, "a grant over tcp with a part of " +
                                      std::to_string(grant.own.blob.size()) +
                                      " bytes; it has none");
  return RemoteMemory{.grant = std::move(grant.region),
                      .engine = "socket",
                      .refusesInOrder = true,
                      .enforcer = Enforcer::kOwner};
}

// A failure says more than that another connection is not made yet, or stands still.
Status TcpLink::health() const {
  Status health = stripes_.health();
  for (size_t i = 0; health.isOk() && i < connections_.size(); ++i)
    health = connections_[i]->health();
  return health;
}

void TcpLink::detach(RemoteMemory& memory) {
  memory = {};
}

void TcpLink::close(Code code) {
  for (const auto& connection : connections_) connection->stop();
  stripes_.close(code);
}

}  // namespace peerlane
