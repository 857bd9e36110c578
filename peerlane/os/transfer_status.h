// SPDX-License-Identifier: Apache-2.0
//
// What an errno of a socket transfer means, shared by the socket sources of this floor only.
#pragma once

#include "peerlane/core/status.h"

namespace peerlane::internal {

// Returns kTryAgain for EAGAIN (without allocating), kPeerLost for a closed or reset connection,
// kPeerSilent when the network gave up, else kSystem. `what` names the call.
Status transferStatus(int error, const char* what);

}  // namespace peerlane::internal
