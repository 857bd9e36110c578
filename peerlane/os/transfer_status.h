// SPDX-License-Identifier: Apache-2.0
//
// Which Status an errno of a call becomes, shared by the sources of this floor only.
#pragma once

#include <string_view>

#include "peerlane/core/status.h"

namespace peerlane::internal {

// Of a socket transfer: kTryAgain for EAGAIN (without allocating), kPeerLost for a closed or reset
// connection, kPeerSilent when the network gave up, kRevoked for memory that cannot be reached,
// kUnavailable when the kernel has no memory for it now, else kSystem. `what` names the call.
Status transferStatus(int error, const char* what);

// Of a call that makes a descriptor: kUnavailable, with advice, when the process has none left;
// else kSystem.
Status descriptorError(int error, std::string_view what);

}  // namespace peerlane::internal
