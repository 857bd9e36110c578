// SPDX-License-Identifier: Apache-2.0
//
// The IP addresses of this host, and which of them to use. Values; thread: any.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/os/socket_address.h"

namespace peerlane {

struct NetworkInterface {
  std::string name;
  std::vector<SocketAddress> addresses;  // IPv4 and IPv6, port 0
  bool up = false;                       // enabled and with a working wire
  bool loopback = false;
};

// "lo 127.0.0.1 ::1; eth0 10.0.0.1; ib0 (down)", for errors.
std::string interfacesInWords(std::span<const NetworkInterface> interfaces);

// All interfaces in the kernel's order, also those that are down or have no address.
Result<std::vector<NetworkInterface>> listInterfaces();

// The addresses to listen on and to tell a peer, best first: IPv4 before IPv6 as the interfaces
// come, link-local ones after those, loopback last. `ip` (if not empty) asks for exactly this
// address. `spec` (if not empty) chooses interfaces by a comma list of name prefixes: "eth,ib";
// "^docker,veth" all but these; "=eth0" exact names; "^=eth0" all but exactly this. Interfaces that
// are down are left out. Errors: kInvalidArgument listing the interfaces that there are, when none
// fits or `spec` cannot be read.
Result<std::vector<SocketAddress>> selectAddresses(std::span<const NetworkInterface> interfaces,
                                                   std::string_view ip, std::string_view spec);
// The same over listInterfaces().
Result<std::vector<SocketAddress>> selectAddresses(std::string_view ip, std::string_view spec);

// An address with the interface that a user wrote before it: "eth0:10.0.0.1:4000",
// "eth0:[fd00::1]:4000". Without one `interface` is empty and `address` the whole text.
struct AddressOnInterface {
  std::string interface;
  std::string address;
};
AddressOnInterface splitInterface(std::string_view text);
// kInvalidArgument listing the interfaces that there are: none has that name; or, with `address`,
// the interface does not have it (ports are not compared).
Status checkInterface(std::span<const NetworkInterface> interfaces, std::string_view name,
                      const SocketAddress* address);

}  // namespace peerlane
