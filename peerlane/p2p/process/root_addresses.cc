// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/process/root_addresses.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "peerlane/core/config_source.h"
#include "peerlane/core/log.h"
#include "peerlane/core/text.h"
#include "peerlane/os/network_interfaces.h"

namespace peerlane::p2p {
namespace {

using Family = SocketAddress::Family;

// A container may have no interface at all, not even the loopback's.
bool isOnNetwork(const std::vector<NetworkInterface>& interfaces) {
  return std::any_of(interfaces.begin(), interfaces.end(), [](const NetworkInterface& interface) {
    return interface.up && !interface.addresses.empty();
  });
}

// Checks that the address and the interfaces that the environment names are there. A context would
// find the same, but it knows the value only and not which of several variables it came from.
Status checkInterfaces(const Config& config, const std::vector<NetworkInterface>& interfaces) {
  if (!config.interfaceAddress.empty()) {
    const auto chosen = selectAddresses(interfaces, config.interfaceAddress, "");
    const auto source = configSource("PEERLANE_IF_IP");
    return chosen.isOk() || !source ? chosen.status()
                                    : chosen.status().withContext(source->toText());
  }
  const auto source = configSource("PEERLANE_SOCKET_IFNAME");
  if (!source) return Status::ok();
  std::string names;
  for (const NetworkInterface& interface : interfaces) {
    const bool isUsable =
        interface.up &&
        std::any_of(interface.addresses.begin(), interface.addresses.end(),
                    [](const SocketAddress& address) { return !address.isLinkLocal(); });
    if (isUsable && config.interfaces.allows(interface.name)) return Status::ok();
    if (isUsable) names += (names.empty() ? "" : ", ") + interface.name;
  }
  return Status(Code::kInvalidArgument,
                source->toText() + ", which leaves no interface to listen on; there are " + names);
}

// The family that P2P_ADDR_FAMILY names; nothing: both.
Result<std::optional<Family>> wantedFamily() {
  const char* const value = std::getenv("P2P_ADDR_FAMILY");
  const std::string_view family = value == nullptr ? "" : value;
  if (family.empty() || family == "auto") return std::optional<Family>();
  if (family == "ipv4") return std::optional(Family::kIpv4);
  if (family == "ipv6") return std::optional(Family::kIpv6);
  return Status(Code::kInvalidArgument,
                "P2P_ADDR_FAMILY is " + quoted(family) + "; accepted: auto, ipv4, ipv6");
}

Status noneOf(Family family, const std::string& among) {
  const bool isIpv4 = family == Family::kIpv4;
  return Status(Code::kInvalidArgument, std::string("P2P_ADDR_FAMILY is \"") +
                                            (isIpv4 ? "ipv4" : "ipv6") +
                                            "\", which leaves no address to listen on: " + among);
}

// All addresses of the family on the interfaces that may be used.
Result<std::vector<std::string>> addressesOf(Family family, const Config& config,
                                             std::vector<NetworkInterface> interfaces) {
  if (!config.interfaceAddress.empty()) {
    PEERLANE_ASSIGN(const auto address, SocketAddress::fromIp(config.interfaceAddress, 0));
    if (address.family() == family) return std::vector<std::string>{"auto"};
    const auto source = configSource("PEERLANE_IF_IP");
    return noneOf(family, source ? source->toText() : config.interfaceAddress + " is asked for");
  }
  std::string others;
  for (NetworkInterface& interface : interfaces)
    std::erase_if(interface.addresses, [&](const SocketAddress& address) {
      if (!interface.up || !config.interfaces.allows(interface.name) || address.isLinkLocal())
        return true;
      if (address.family() == family) return false;
      others += (others.empty() ? "there are " : ", ") + interface.name + " " + address.ip();
      return true;
    });
  const auto left = selectAddresses(interfaces, "", "");
  if (!left.isOk()) return noneOf(family, others);
  std::vector<std::string> listen;
  for (const SocketAddress& address : *left) listen.push_back(address.toString());
  return listen;
}

}  // namespace

Result<std::vector<std::string>> rootAddresses(const Config& config) {
  PEERLANE_ASSIGN(const auto family, wantedFamily());
  PEERLANE_ASSIGN(auto interfaces, listInterfaces());
  if (!isOnNetwork(interfaces)) {
    PEERLANE_LOG_WARN(
        "this process sees no network: only processes that share "
        "PEERLANE_SOCKET_DIR, or its network namespace, can connect");
    return std::vector<std::string>();
  }
  PEERLANE_RETURN_IF_ERROR(checkInterfaces(config, interfaces));
  if (!family) return std::vector<std::string>{"auto"};
  return addressesOf(*family, config, std::move(interfaces));
}

void warnOfIgnoredVariables() {
  static std::atomic_flag isSaid;
  if (isSaid.test_and_set()) return;
  constexpr std::pair<const char*, const char*> kIgnored[] = {
      {"P2P_ROCE_PORT_RANGE", "connections for data listen in P2P_PORT_RANGE, as all others do"},
      {"P2P_ROCE_ADDR_FAMILY", "connections for data are of the family of P2P_ADDR_FAMILY"}};
  for (const auto& [name, why] : kIgnored)
    if (const char* const value = std::getenv(name); value != nullptr && *value != '\0')
      PEERLANE_LOG_WARN("{} is {}, which is ignored: {}", name, quoted(value), why);
}

}  // namespace peerlane::p2p
