// SPDX-License-Identifier: Apache-2.0
//
// The other side of a trial: does the steps it is told until it is told to end. Blocks its thread.
#pragma once

#include "peerlane/session/context/context.h"

namespace peerlane {

// `device`: where memory of GPUs is taken at this side. OK after the end step; otherwise why it
// could not go on (kPeerLost when the first side is gone).
Status serveTrial(Context& context, const Peer& peer, const Device& device = {});

}  // namespace peerlane
