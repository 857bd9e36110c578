// SPDX-License-Identifier: Apache-2.0
//
// Root bootstrap: how a root becomes a communicator: the process that made the root accepts the
// other side, which connects by the root's ticket; then both create a PairCommunicator on the
// connection. Plain function over the tables of P2pProcess; any thread, which waits.
#pragma once

#include <memory>
#include <string>

#include "peerlane/p2p/pair/pair_communicator.h"
#include "peerlane/p2p/process/p2p_process.h"
#include "peerlane/p2p/result_code.h"

namespace peerlane::p2p {

// The errors of P2PCommInitRootInfo once its arguments are checked.
Answer bootstrapByRoot(P2pProcess& process, const std::string& ticket, const PairOptions& options,
                       std::shared_ptr<PairCommunicator>& made);

}  // namespace peerlane::p2p
