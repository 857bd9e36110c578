// SPDX-License-Identifier: Apache-2.0
//
// The mover of the bytes of one post: this host, a GPU of this context, or both sides' hosts
// through staging memory; and the pins and checks that a GPU needs before. Thread-safe: no state.
#pragma once

#include <string>

#include "peerlane/channel/blocks/block_list.h"
#include "peerlane/core/status.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

// Why the blocks cannot go straight, empty when they can. `stream`: in whose order, if any.
std::string whyStaged(const BlockList& blocks, const PeerCore& peer, DeviceStream stream);

// Null when all of it is host memory, or an agent of a link copies all of it; else the GPU where
// local memory lies; else, where only the peer's is a GPU's, the one of `stream`, or this context's
// first. Errors: kNotSupported for local memory of two GPUs in one post, and for memory of a peer's
// GPU where this context has none.
Result<DeviceExecutor*> executorFor(const BlockList& blocks, const PeerCore& peer,
                                    DeviceStream stream);

// Makes what is host memory reachable for that device, for as long as it is registered. Requires:
// imported, and inside the gates: the memory must not go while the driver pins it. Errors:
// kNotSupported for a peer's memory that is not mapped here.
Status pinFor(DeviceExecutor& executor, const BlockList& blocks);

// kInvalidArgument for GPU memory that was freed, or freed and allocated anew, since it was
// registered.
Status checkIdentity(const BlockList& blocks);

// "mapped", "cma", "ring", ...: the copying side of the first remote region, for counters.
const char* engineOf(const BlockList& blocks);

}  // namespace peerlane
