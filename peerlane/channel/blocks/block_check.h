// SPDX-License-Identifier: Apache-2.0
//
// Checks what a user asked to move, before anything is imported, lowered or moved: that the regions
// exist and belong to this peer and context, that their rights allow it, that every block lies
// inside them, and that no two blocks write the same bytes. Thread-safe: no state.
#pragma once

#include <span>

#include "peerlane/channel/blocks/block_list.h"
#include "peerlane/channel/blocks/blocks.h"
#include "peerlane/core/status.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

// Fill `checked`, which must be new. After an error it is of no use. Errors: kInvalidArgument
// naming the block and its fault, kPermissionDenied.
// `firstTarget`: the first number that the program of a list will give to the data, if it is known
// (BlockLowering::firstTargetOf); another one costs a walk over the list.
Status checkBlocks(const PeerCore& peer, Direction direction, std::span<const Block> blocks,
                   BlockList& checked, TargetId firstTarget = 0);
Status checkBlocks(const PeerCore& peer, Direction direction, const StridedBlocks& blocks,
                   BlockList& checked);
Status checkBlocks(const PeerCore& peer, Direction direction, const IndexedBlocks& blocks,
                   BlockList& checked);

}  // namespace peerlane
