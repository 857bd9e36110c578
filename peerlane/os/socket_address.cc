// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/socket_address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>

namespace peerlane {
namespace {

static_assert(sizeof(sockaddr_storage) == 128);

constexpr std::string_view kForms =
    "accepted are 1.2.3.4:PORT, [IPv6]:PORT, unix:/path and unix:@name, also with an interface "
    "before it (eth0:1.2.3.4:PORT) where a context listens or connects, name:PORT where it "
    "connects, and the word auto where it listens";

Status badAddress(std::string_view text, std::string_view why) {
  return Status(Code::kInvalidArgument, "address \"" + std::string(text) +
                                            "\": " + std::string(why) + "; " + std::string(kForms));
}

std::optional<uint16_t> parsePort(std::string_view text) {
  uint32_t port = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || port > 65535) {
    return std::nullopt;
  }
  return static_cast<uint16_t>(port);
}

struct HostAndPort {
  std::string host;
  std::string_view port;
  bool bracketed;
};

// Splits "host:port" and "[host]:port"; nothing when there is no port.
std::optional<HostAndPort> splitPort(std::string_view text) {
  size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || text.back() == ']') return std::nullopt;
  std::string_view host = text.substr(0, colon);
  bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  return HostAndPort{std::string(host), text.substr(colon + 1), bracketed};
}

Result<SocketAddress> parseUnix(std::string_view text, std::string_view name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  bool isAbstract = !name.empty() && name.front() == '@';
  if (name.size() < (isAbstract ? 2u : 1u)) return badAddress(text, "the name is empty");
  if (name.find('\0') != std::string_view::npos)
    return badAddress(text, "the name has a zero byte");
  // A path needs its terminating zero; an abstract name trades '@' for the leading zero.
  size_t limit = isAbstract ? sizeof address.sun_path : sizeof address.sun_path - 1;
  if (name.size() > limit) {
    return badAddress(text, "the name has " + std::to_string(name.size()) +
                                " bytes, the limit is " + std::to_string(limit));
  }
  std::memcpy(address.sun_path, name.data(), name.size());
  if (isAbstract) address.sun_path[0] = '\0';
  size_t bytes = offsetof(sockaddr_un, sun_path) + name.size() + (isAbstract ? 0 : 1);
  return SocketAddress::fromRaw(reinterpret_cast<sockaddr*>(&address), bytes);
}

// An error is the reason alone: the caller names the whole address.
Result<SocketAddress> parseIp(std::string_view ip, uint16_t port) {
  const auto bad = [&](const std::string& why) { return Status(Code::kInvalidArgument, why); };
  std::string host(ip);
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  if (::inet_pton(AF_INET, host.c_str(), &v4.sin_addr) == 1) {
    return SocketAddress::fromRaw(reinterpret_cast<sockaddr*>(&v4), sizeof v4);
  }
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  size_t percent = host.find('%');
  if (::inet_pton(AF_INET6, host.substr(0, percent).c_str(), &v6.sin6_addr) != 1) {
    return bad("\"" + host + "\" is neither an IPv4 nor an IPv6 address");
  }
  if (percent != std::string::npos) {
    std::string scope = host.substr(percent + 1);
    v6.sin6_scope_id = ::if_nametoindex(scope.c_str());
    if (v6.sin6_scope_id == 0) {
      auto [end, error] =
          std::from_chars(scope.data(), scope.data() + scope.size(), v6.sin6_scope_id);
      if (scope.empty() || error != std::errc() || end != scope.data() + scope.size()) {
        return bad("there is no network interface \"" + scope + "\"");
      }
    }
  }
  return SocketAddress::fromRaw(reinterpret_cast<sockaddr*>(&v6), sizeof v6);
}

}  // namespace

Result<SocketAddress> SocketAddress::fromIp(std::string_view ip, uint16_t port) {
  auto address = parseIp(ip, port);
  return address.isOk() ? address : badAddress(ip, address.status().message());
}

Result<SocketAddress> SocketAddress::parse(std::string_view text) {
  if (text.starts_with("unix:")) return parseUnix(text, text.substr(5));
  if (const size_t scheme = text.find("://"); scheme != std::string_view::npos)
    return badAddress(text, "addresses have no scheme; leave out \"" +
                                std::string(text.substr(0, scheme + 3)) + "\"");
  if (text.rfind(':') == 0) return badAddress(text, "there is no host before the port");
  auto split = splitPort(text);
  if (!split) return badAddress(text, "there is no port");
  if (!split->bracketed && split->host.find(':') != std::string::npos) {
    return badAddress(text, "an IPv6 address with a port needs brackets");
  }
  auto port = parsePort(split->port);
  if (!port) {
    return badAddress(text, "it was read as the host \"" + split->host + "\" and the port \"" +
                                std::string(split->port) + "\", which is not within 0 to 65535");
  }
  auto address = parseIp(split->host, *port);
  if (!address.isOk()) return badAddress(text, address.status().message());
  if (split->bracketed && address->family() != Family::kIpv6) {
    return badAddress(text, "brackets are for IPv6 addresses");
  }
  return address;
}

Result<std::vector<SocketAddress>> SocketAddress::resolve(const std::string& text) {
  auto direct = parse(text);
  if (direct.isOk()) return std::vector<SocketAddress>{direct.value()};
  auto split = splitPort(text);
  if (!split || split->bracketed || !parsePort(split->port) || text.starts_with("unix:") ||
      split->host.find(':') != std::string::npos) {
    return direct.status();
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  int error = ::getaddrinfo(split->host.c_str(), std::string(split->port).c_str(), &hints, &found);
  if (error != 0) {
    std::string why = error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error);
    return Status(Code::kUnavailable, "the name \"" + split->host + "\" was not resolved: " + why);
  }
  std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    auto address = fromRaw(entry->ai_addr, entry->ai_addrlen);
    if (!address.isOk()) continue;
    if (std::find(addresses.begin(), addresses.end(), *address) == addresses.end()) {
      addresses.push_back(*address);
    }
  }
  if (addresses.empty()) {
    return Status(Code::kUnavailable, "the name \"" + split->host + "\" has no IP address");
  }
  return addresses;
}

Result<SocketAddress> SocketAddress::fromRaw(const sockaddr* address, size_t bytes) {
  SocketAddress result;
  if (bytes < sizeof(sa_family_t) || bytes > result.storage_.size()) {
    return Status(Code::kInvalidArgument,
                  "a socket address of " + std::to_string(bytes) + " bytes; accepted are 2 to 128");
  }
  switch (address->sa_family) {
    case AF_INET: result.family_ = Family::kIpv4; break;
    case AF_INET6: result.family_ = Family::kIpv6; break;
    case AF_UNIX: {
      // The other end of an unbound Unix socket has no name at all.
      size_t nameBytes = bytes - offsetof(sockaddr_un, sun_path);
      if (bytes <= offsetof(sockaddr_un, sun_path)) return SocketAddress();
      const char* name = reinterpret_cast<const sockaddr_un*>(address)->sun_path;
      if (name[0] == '\0' && nameBytes < 2) return SocketAddress();
      result.family_ = name[0] == '\0' ? Family::kUnixAbstract : Family::kUnixPath;
      break;
    }
    default:
      return Status(Code::kNotSupported, "address family " + std::to_string(address->sa_family) +
                                             "; supported are IPv4 (2), IPv6 (10) and Unix (1)");
  }
  size_t least = result.family_ == Family::kIpv4   ? sizeof(sockaddr_in)
                 : result.family_ == Family::kIpv6 ? sizeof(sockaddr_in6)
                                                   : 0;
  if (bytes < least) return Status(Code::kInvalidArgument, "a truncated IP socket address");
  std::memcpy(result.storage_.data(), address, bytes);
  result.rawBytes_ = static_cast<uint32_t>(bytes);
  return result;
}

const sockaddr* SocketAddress::raw() const {
  return reinterpret_cast<const sockaddr*>(storage_.data());
}

bool SocketAddress::isLoopback() const {
  if (family_ == Family::kIpv4) {
    return (ntohl(reinterpret_cast<const sockaddr_in*>(raw())->sin_addr.s_addr) >> 24) == 127;
  }
  if (family_ != Family::kIpv6) return false;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(raw())->sin6_addr);
}

bool SocketAddress::isLinkLocal() const {
  if (family_ == Family::kIpv4) {
    return (ntohl(reinterpret_cast<const sockaddr_in*>(raw())->sin_addr.s_addr) >> 16) == 0xa9fe;
  }
  if (family_ != Family::kIpv6) return false;
  return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(raw())->sin6_addr);
}

bool SocketAddress::isWildcard() const {
  if (family_ == Family::kIpv4) {
    return reinterpret_cast<const sockaddr_in*>(raw())->sin_addr.s_addr == INADDR_ANY;
  }
  if (family_ != Family::kIpv6) return false;
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(raw())->sin6_addr);
}

uint16_t SocketAddress::port() const {
  // Both IP families keep the port at the same place.
  return isIp() ? ntohs(reinterpret_cast<const sockaddr_in*>(raw())->sin_port) : 0;
}

SocketAddress SocketAddress::withPort(uint16_t port) const {
  SocketAddress copy = *this;
  if (copy.isIp()) reinterpret_cast<sockaddr_in*>(copy.storage_.data())->sin_port = htons(port);
  return copy;
}

std::string SocketAddress::ip() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (family_ == Family::kIpv4) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(raw())->sin_addr, text, sizeof text);
    return text;
  }
  if (family_ != Family::kIpv6) return {};
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(raw());
  ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
  std::string ip = text;
  if (v6->sin6_scope_id != 0) {
    char name[IF_NAMESIZE];
    const char* known = ::if_indextoname(v6->sin6_scope_id, name);
    ip += '%';
    ip += known != nullptr ? std::string(known) : std::to_string(v6->sin6_scope_id);
  }
  return ip;
}

std::string SocketAddress::unixName() const {
  if (!isUnix()) return {};
  const char* name = reinterpret_cast<const sockaddr_un*>(raw())->sun_path;
  size_t bytes = rawBytes_ - offsetof(sockaddr_un, sun_path);
  if (family_ == Family::kUnixAbstract) return std::string(name + 1, bytes - 1);
  return std::string(name, ::strnlen(name, bytes));
}

std::string SocketAddress::toString() const {
  switch (family_) {
    case Family::kNone: return "(none)";
    case Family::kIpv4: return ip() + ':' + std::to_string(port());
    case Family::kIpv6: return '[' + ip() + "]:" + std::to_string(port());
    case Family::kUnixPath: return "unix:" + unixName();
    case Family::kUnixAbstract: return "unix:@" + unixName();
  }
  return {};
}

bool operator==(const SocketAddress& a, const SocketAddress& b) {
  if (a.family_ != b.family_) return false;
  // IPv6 flow labels and padding do not tell addresses apart, so compare what is shown.
  if (a.family_ == SocketAddress::Family::kIpv6) {
    const auto* x = reinterpret_cast<const sockaddr_in6*>(a.raw());
    const auto* y = reinterpret_cast<const sockaddr_in6*>(b.raw());
    return x->sin6_port == y->sin6_port && x->sin6_scope_id == y->sin6_scope_id &&
           std::memcmp(&x->sin6_addr, &y->sin6_addr, sizeof x->sin6_addr) == 0;
  }
  if (a.family_ == SocketAddress::Family::kIpv4) return a.port() == b.port() && a.ip() == b.ip();
  return a.unixName() == b.unixName();
}

}  // namespace peerlane
