// SPDX-License-Identifier: Apache-2.0
//
// Communicator options: the arguments of P2PCommInitRootInfo, checked, as PairOptions. Every
// refusal names the member, its value and what would be accepted. Plain function; any thread.
#pragma once

#include "peerlane/core/status.h"
#include "peerlane/p2p.h"
#include "peerlane/p2p/pair/pair_options.h"

namespace peerlane::p2p {

// kInvalidArgument; a GPU that is named where there is no CUDA: as cuda::gpus().
Result<PairOptions> checkedOptions(P2pKind kind, P2pLink link, const P2PCommInitOptions& options);

}  // namespace peerlane::p2p
