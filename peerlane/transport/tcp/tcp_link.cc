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

std::string numbered(const std::string& name, uint32_t socket, size_t sockets) {
  return name + ", socket " + std::to_string(socket + 1) + " of " + std::to_string(sockets);
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
              .protection = protection(keys.front()),
              .sockets = static_cast<uint32_t>(keys.size())},
      connections_(makeConnections(surroundings, name, keys)),
      stripes_(agentsOf(connections_), surroundings.copyTeam, surroundings.workArrived) {
  stripes_.setMade(1);  // whose agent says itself whether it is
}

std::vector<std::unique_ptr<TcpConnection>> TcpLink::makeConnections(
    const LinkSurroundings& surroundings, const std::string& name,
    std::span<const std::optional<StreamKeys>> keys) {
  std::vector<std::unique_ptr<TcpConnection>> connections;
  for (uint32_t socket = 0; socket < keys.size(); ++socket) {
    const auto& own = keys[socket];
    connections.push_back(std::make_unique<TcpConnection>(
        surroundings, keys.size() == 1 ? name : numbered(name, socket, keys.size()),
        own ? &*own : nullptr, /*isFirst=*/socket == 0,
        [this, socket](const Result<SocketAddress>& end) { made(socket, end); }));
  }
  return connections;
}

void TcpLink::dial(Route route) {
  route_ = std::move(route);
  dialSocket(0);
}

void TcpLink::dialSocket(uint32_t socket) {
  const auto number = static_cast<uint16_t>(socket);
  connections_[socket]->dial({.addresses = route_->addresses,
                              .present = cardOf(route_->present, number),
                              .expect = cardOf(route_->expect, number),
                              .patience = route_->patience});
}

// Those before the first one that is not made are used.
void TcpLink::made(uint32_t socket, const Result<SocketAddress>& end) {
  isMade_[socket] = true;
  const auto first = std::find(isMade_.begin(), isMade_.end(), false);
  stripes_.setMade(static_cast<uint32_t>(std::max<ptrdiff_t>(1, first - isMade_.begin())));
  const uint32_t next = socket + 1;
  if (!route_ || next == sockets()) return;
  if (end) route_->addresses = {*end};
  dialSocket(next);
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

// Those that are not made yet are waited for by nobody, but for the first.
Status TcpLink::health() const {
  Status health = stripes_.health();
  for (uint32_t i = 0; health.isOk() && i < stripes_.made(); ++i)
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
