// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/unix_reach.h"

namespace peerlane {

std::string whereInWords(HostRelation relation) {
  switch (relation) {
    case HostRelation::kOtherHost: return "on another host";
    case HostRelation::kOtherNetwork:
      return "on this host, in another network namespace: set PEERLANE_SOCKET_DIR to a folder that "
             "both see";
    case HostRelation::kSameNetwork:
      return "on this host, where Unix sockets lead to it if both sides have the same "
             "PEERLANE_SOCKET_DIR, or neither has one";
    case HostRelation::kUnknown: break;
  }
  return "on another host, or on this one without a common PEERLANE_SOCKET_DIR: /proc did not tell";
}

Status noUnixSocket(HostRelation relation) {
  return Status(Code::kNotSupported,
                "the peer was not reached by a Unix socket; it is " + whereInWords(relation));
}

}  // namespace peerlane
