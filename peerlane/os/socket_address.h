// SPDX-License-Identifier: Apache-2.0
//
// SocketAddress: where a socket listens or connects: IPv4, IPv6 with scope, a Unix path or a Unix
// abstract name. A value; immutable after creation apart from assignment. Text forms, accepted and
// produced alike:
//   1.2.3.4:80   [::1]:80   [fe80::1%eth0]:80   unix:/run/peerlane/a   unix:@name
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "peerlane/core/status.h"

struct sockaddr;

namespace peerlane {

class SocketAddress {
 public:
  enum class Family : uint8_t { kNone, kIpv4, kIpv6, kUnixPath, kUnixAbstract };

  // Family kNone: the address of an unbound socket.
  SocketAddress() = default;

  // Reads one of the text forms above. Host names are not looked up: see resolve. Port 0 is
  // accepted (a listener then gets a free port). Errors: kInvalidArgument naming the text and the
  // forms.
  static Result<SocketAddress> parse(std::string_view text);
  // `ip` without brackets or port, e.g. "10.0.0.1" or "fe80::1%eth0".
  static Result<SocketAddress> fromIp(std::string_view ip, uint16_t port);
  // Like parse, but also "host:80", asked of the system's resolver. May block for seconds. At least
  // one address on success, in the resolver's order, without duplicates.
  static Result<std::vector<SocketAddress>> resolve(const std::string& text);
  // From what the kernel wrote. Errors: kNotSupported for another address family.
  static Result<SocketAddress> fromRaw(const sockaddr* address, size_t bytes);

  Family family() const { return family_; }
  bool isUnix() const { return family_ == Family::kUnixPath || family_ == Family::kUnixAbstract; }
  bool isIp() const { return family_ == Family::kIpv4 || family_ == Family::kIpv6; }
  bool isLoopback() const;
  // fe80::/10 or 169.254/16: reaches the neighbours on one wire only.
  bool isLinkLocal() const;
  // 0.0.0.0 or ::.
  bool isWildcard() const;
  // 0 for Unix addresses.
  uint16_t port() const;
  SocketAddress withPort(uint16_t port) const;
  // The address without port and brackets, with scope; empty for Unix addresses.
  std::string ip() const;
  // The file system path of kUnixPath; the name without '@' of kUnixAbstract; else empty.
  std::string unixName() const;
  std::string toString() const;

  // For system calls. Lifetime: this object.
  const sockaddr* raw() const;
  size_t rawBytes() const { return rawBytes_; }

  friend bool operator==(const SocketAddress& a, const SocketAddress& b);

 private:
  alignas(8) std::array<std::byte, 128> storage_{};  // a sockaddr_storage
  uint32_t rawBytes_ = 0;
  Family family_ = Family::kNone;
};

}  // namespace peerlane
