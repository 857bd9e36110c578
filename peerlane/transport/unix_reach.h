// SPDX-License-Identifier: Apache-2.0
//
// Why Unix sockets do not lead to a process, and which setting changes that. For links within a
// host, and for the addresses of tickets. Plain values; any thread.
#pragma once

#include <string>

#include "peerlane/core/status.h"
#include "peerlane/os/host_identity.h"

namespace peerlane {

// "on another host", or where else it is and what to set. For an address that is not tried.
std::string whereInWords(HostRelation relation);
// kNotSupported: the connection to a peer there is no Unix socket.
Status noUnixSocket(HostRelation relation);

}  // namespace peerlane
