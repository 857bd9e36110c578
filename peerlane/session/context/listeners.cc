// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/listeners.h"

#include "peerlane/core/log.h"
#include "peerlane/core/text.h"
#include "peerlane/os/network_interfaces.h"

namespace peerlane {
namespace {

// Best first: addresses that other hosts know, then those of bridges between containers, which are
// the same on every host that has some.
enum class Nearness { kOutside, kContainers, kLoopback };

Nearness nearnessOf(const NetworkInterface& interface) {
  if (interface.loopback) return Nearness::kLoopback;
  for (const char* const name : {"docker", "br-", "veth", "virbr", "cni", "podman"})
    if (interface.name.starts_with(name)) return Nearness::kContainers;
  return Nearness::kOutside;
}

}  // namespace

Result<std::unique_ptr<Listeners>> Listeners::create(EventLoop& loop, const Config& config,
                                                     const ContextId& id,
                                                     const std::vector<std::string>& wanted,
                                                     Acceptor::Events events) {
  std::unique_ptr<Listeners> listeners(new Listeners(loop, std::move(events)));
  PEERLANE_RETURN_IF_ERROR(listeners->addUnix(config, id));
  for (const std::string& text : wanted) PEERLANE_RETURN_IF_ERROR(listeners->addTcp(config, text));
  return listeners;
}

Status Listeners::addUnix(const Config& config, const ContextId& id) {
  const std::string& folder = config.socketDirectory;
  const std::string name = folder.empty() ? "unix:@peerlane-" + id.toText()
                                          : "unix:" + folder + "/peerlane-" + id.toText() + ".sock";
  PEERLANE_ASSIGN(const SocketAddress address, SocketAddress::parse(name));
  if (!folder.empty()) removeStaleSockets(folder, "peerlane-");
  auto socket = listenOn(address);
  if (!socket.isOk())
    return socket.status().withContext(
        folder.empty()
            ? "no abstract socket can be made; PEERLANE_SOCKET_DIR takes a folder for a file"
            : "PEERLANE_SOCKET_DIR is " + folder +
                  "; need a folder in which this process may make sockets");
  return add(std::move(*socket), address);
}

Result<std::vector<SocketAddress>> Listeners::chosen(const Config& config) const {
  PEERLANE_ASSIGN(const auto interfaces, listInterfaces());
  if (!config.interfaceAddress.empty()) {
    auto selected = selectAddresses(interfaces, config.interfaceAddress, "");
    if (selected.isOk()) return selected;
    return selected.status().withContext(
        "PEERLANE_IF_IP, or P2P_IF_IP, IF_IP_DEFAULT or HCCL_IF_IP in its place "
        "(Config::interfaceAddress), is " +
        peerlane::quoted(config.interfaceAddress));
  }
  std::vector<SocketAddress> addresses;
  for (const Nearness wanted : {Nearness::kOutside, Nearness::kContainers, Nearness::kLoopback}) {
    for (const NetworkInterface& interface : interfaces) {
      if (nearnessOf(interface) != wanted || !interface.up) continue;
      if (!config.interfaces.allows(interface.name)) continue;
      for (const SocketAddress& address : interface.addresses)
        if (!address.isLinkLocal()) addresses.push_back(address);
    }
  }
  if (!addresses.empty()) return addresses;
  const std::string here = interfacesInWords(interfaces);
  if (config.interfaces.names.empty())
    return Status(Code::kUnavailable,
                  "no network interface of this host is up and has an address; there are: " + here);
  return Status(Code::kUnavailable,
                "PEERLANE_SOCKET_IFNAME, or P2P_SOCKET_IFNAME or HCCL_SOCKET_IFNAME in its place "
                "(Config::interfaces), is " +
                    peerlane::quoted(config.interfaces.toText()) +
                    ", which leaves no address to listen on; accepted: prefixes of names, or after "
                    "= whole names, or after ^ those to leave out, of interfaces that are up: " +
                    here);
}

namespace {

Result<Fd> listenInPorts(const SocketAddress& address, const Config& config) {
  auto socket = listenInRange(address, config.ports.first, config.ports.last);
  if (socket.isOk()) return socket;
  const std::string source =
      config.portsSource.empty() ? "PEERLANE_PORT_RANGE" : config.portsSource;
  return socket.status().withContext(source +
                                     "; accepted: first-last, one port, or 0 for any free one");
}

}  // namespace

Status Listeners::addTcp(const Config& config, const std::string& wanted) {
  std::vector<SocketAddress> addresses;
  if (wanted == "auto") {
    PEERLANE_ASSIGN(addresses, chosen(config));
  } else {
    const AddressOnInterface named = splitInterface(wanted);
    PEERLANE_ASSIGN(const SocketAddress address, SocketAddress::parse(named.address));
    if (!named.interface.empty()) {
      PEERLANE_ASSIGN(const auto interfaces, listInterfaces());
      if (const Status has = checkInterface(interfaces, named.interface, &address); !has.isOk())
        return has.withContext("listen on " + wanted);
    }
    addresses.push_back(address);
  }
  Status failed;
  bool isReachable = false;
  for (const SocketAddress& address : addresses) {
    const bool anyPort = address.isIp() && address.port() == 0;
    auto socket =
        anyPort && config.ports.last != 0 ? listenInPorts(address, config) : listenOn(address);
    // One of several interfaces may be unusable; the one the user named may not.
    if (!socket.isOk() && wanted == "auto") {
      PEERLANE_LOG_WARN("not listening on {}: {}", address.toString(), socket.status().toString());
      failed = socket.status();
      continue;
    }
    if (!socket.isOk()) return socket.status().withContext("listen on " + wanted);
    PEERLANE_RETURN_IF_ERROR(add(std::move(*socket), address));
    isReachable = true;
  }
  return isReachable ? Status::ok() : failed;
}

Status Listeners::add(Fd socket, const SocketAddress& bound) {
  auto listener = std::make_unique<Listener>();
  listener->file = SocketFile(bound);
  PEERLANE_ASSIGN(listener->address, localAddress(socket.get()));
  PEERLANE_ASSIGN(listener->acceptor,
                  Acceptor::create(loop_, std::move(socket),
                                   "accept on " + listener->address.toString(), events_));
  // A wildcard says nothing to others: name the addresses behind it.
  if (listener->address.isWildcard()) {
    PEERLANE_ASSIGN(const auto interfaces, listInterfaces());
    const bool ipv4 = listener->address.family() == SocketAddress::Family::kIpv4;
    for (const bool loopback : {false, true})
      for (const NetworkInterface& interface : interfaces)
        for (const SocketAddress& address : interface.addresses)
          if (interface.up && interface.loopback == loopback && !address.isLinkLocal() &&
              (!ipv4 || address.family() == SocketAddress::Family::kIpv4))
            addresses_.push_back(address.withPort(listener->address.port()).toString());
  } else {
    addresses_.push_back(listener->address.toString());
  }
  listeners_.push_back(std::move(listener));
  return Status::ok();
}

}  // namespace peerlane
