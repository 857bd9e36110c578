// SPDX-License-Identifier: Apache-2.0
//
// The gates (UseGate) of the regions that one post uses: while the post is inside, the owner of a
// region waits before the memory is taken back. Thread-safe: no state; a post enters once and
// leaves once.
#pragma once

#include "peerlane/channel/blocks/block_list.h"
#include "peerlane/core/status.h"

namespace peerlane {

// Every region of the list. Requires: imported. kClosed naming the side whose region is taken back;
// then no gate is held. After OK, leaveGates() must follow.
Status enterGates(const BlockList& blocks);
void leaveGates(const BlockList& blocks);
// This side's regions alone: the peer's own transfer uses its regions.
Status enterLocalGates(const BlockList& blocks);
void leaveLocalGates(const BlockList& blocks);

}  // namespace peerlane
