// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/network_interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

namespace peerlane {
namespace {

struct NameRule {
  bool exclude = false;
  bool exact = false;
  std::vector<std::string> names;

  bool accepts(const std::string& name) const {
    bool hit = std::any_of(names.begin(), names.end(), [&](const std::string& wanted) {
      return exact ? name == wanted : name.starts_with(wanted);
    });
    return hit != exclude;
  }
};

Result<NameRule> parseRule(std::string_view spec) {
  NameRule rule;
  std::string_view rest = spec;
  if (rest.starts_with('^')) {
    rule.exclude = true;
    rest.remove_prefix(1);
  }
  if (rest.starts_with('=')) {
    rule.exact = true;
    rest.remove_prefix(1);
  }
  while (true) {
    size_t comma = rest.find(',');
    std::string_view name = rest.substr(0, comma);
    if (name.empty() || name.find_first_of("^= \t") != std::string_view::npos) {
      return Status(Code::kInvalidArgument,
                    "interface choice \"" + std::string(spec) +
                        "\" has an empty or misspelt name; accepted are comma lists of name "
                        "prefixes, with a leading ^ to exclude and = for exact names");
    }
    rule.names.emplace_back(name);
    if (comma == std::string_view::npos) return rule;
    rest.remove_prefix(comma + 1);
  }
}

// Smaller is better.
int rank(const SocketAddress& address) {
  int rank = address.family() == SocketAddress::Family::kIpv6 ? 1 : 0;
  if (address.isLinkLocal()) rank += 2;
  if (address.isLoopback()) rank += 4;
  return rank;
}

}  // namespace

std::string interfacesInWords(std::span<const NetworkInterface> interfaces) {
  std::string text;
  for (const NetworkInterface& one : interfaces) {
    text += (text.empty() ? "" : "; ") + one.name + (one.up ? "" : " (down)");
    for (const SocketAddress& address : one.addresses) text += " " + address.ip();
  }
  return text.empty() ? "none" : text;
}

Result<std::vector<NetworkInterface>> listInterfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) < 0)
    return Status::system(errno, "list the network interfaces of this host (getifaddrs)");
  std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, ::freeifaddrs);
  std::vector<NetworkInterface> interfaces;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    auto known =
        std::find_if(interfaces.begin(), interfaces.end(),
                     [&](const NetworkInterface& one) { return one.name == entry->ifa_name; });
    if (known == interfaces.end()) {
      NetworkInterface fresh;
      fresh.name = entry->ifa_name;
      fresh.up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
      fresh.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
      known = interfaces.insert(interfaces.end(), std::move(fresh));
    }
    if (entry->ifa_addr == nullptr) continue;
    int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    size_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    PEERLANE_ASSIGN(SocketAddress address, SocketAddress::fromRaw(entry->ifa_addr, bytes));
    known->addresses.push_back(address);
  }
  return interfaces;
}

Result<std::vector<SocketAddress>> selectAddresses(std::span<const NetworkInterface> interfaces,
                                                   std::string_view ip, std::string_view spec) {
  NameRule rule{true, false, {}};
  if (!spec.empty()) {
    PEERLANE_ASSIGN(rule, parseRule(spec));
  }
  SocketAddress wanted;
  if (!ip.empty()) {
    PEERLANE_ASSIGN(wanted, SocketAddress::fromIp(ip, 0));
  }
  std::vector<SocketAddress> chosen;
  for (const NetworkInterface& one : interfaces) {
    if (!one.up || !rule.accepts(one.name)) continue;
    for (const SocketAddress& address : one.addresses) {
      if (ip.empty() || address == wanted) chosen.push_back(address);
    }
  }
  if (chosen.empty()) {
    std::string what = ip.empty() ? "no interface that is up and has an address"
                                  : "no interface with the address " + std::string(ip);
    if (!spec.empty()) what += " fits \"" + std::string(spec) + "\"";
    return Status(Code::kInvalidArgument,
                  what + "; available are: " + interfacesInWords(interfaces));
  }
  std::stable_sort(
      chosen.begin(), chosen.end(),
      [](const SocketAddress& a, const SocketAddress& b) { return rank(a) < rank(b); });
  return chosen;
}

Result<std::vector<SocketAddress>> selectAddresses(std::string_view ip, std::string_view spec) {
  PEERLANE_ASSIGN(std::vector<NetworkInterface> interfaces, listInterfaces());
  return selectAddresses(interfaces, ip, spec);
}

AddressOnInterface splitInterface(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  // The rest has one colon, or an IPv6 address in brackets: anything else is an address itself.
  const bool isAddress = rest.starts_with('[')
                             ? rest.find("]:") != std::string_view::npos
                             : rest.find(':') == rest.rfind(':') &&
                                   rest.find(':') != std::string_view::npos &&
                                   !rest.starts_with(':') && !rest.starts_with('/');  // tcp://...
  const bool hasName = colon != 0 && !text.starts_with('[') && !text.starts_with("unix:");
  if (!hasName || !isAddress) return {"", std::string(text)};
  return {std::string(text.substr(0, colon)), std::string(rest)};
}

Status checkInterface(std::span<const NetworkInterface> interfaces, std::string_view name,
                      const SocketAddress* address) {
  const auto found =
      std::find_if(interfaces.begin(), interfaces.end(),
                   [&](const NetworkInterface& interface) { return interface.name == name; });
  if (found == interfaces.end())
    return Status(Code::kInvalidArgument,
                  "there is no interface \"" + std::string(name) +
                      "\"; available are: " + interfacesInWords(interfaces));
  if (address == nullptr) return Status::ok();
  for (const SocketAddress& one : found->addresses)
    if (one.withPort(address->port()) == *address) return Status::ok();
  return Status(Code::kInvalidArgument, "interface \"" + std::string(name) +
                                            "\" does not have the address " + address->ip() +
                                            "; available are: " + interfacesInWords(interfaces));
}

}  // namespace peerlane
