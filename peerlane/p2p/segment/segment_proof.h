// SPDX-License-Identifier: Apache-2.0
//
// SegmentProof: a keyed hash by which an importer proves to the owner of a segment that it has the
// segment's key. The other side is the owner by its own claim only: a liar learns nothing of the
// key from the proof and cannot use it elsewhere, because it holds between these two contexts
// alone, in this direction. Plain functions; any thread.
#pragma once

#include <array>
#include <cstddef>

#include "peerlane/p2p/segment/segment_name.h"
#include "peerlane/session/wire/ticket.h"

namespace peerlane::p2p {

using SegmentProof = std::array<std::byte, 32>;

// The two contexts at the ends of the connection over which the segment is asked for.
struct AskEnds {
  ContextId asker;
  ContextId owner;
};

SegmentProof makeProof(uint64_t number, const SegmentKey& key, const AskEnds& ends);
// Compares in constant time.
bool isProof(const SegmentProof& proof, uint64_t number, const SegmentKey& key,
             const AskEnds& ends);

}  // namespace peerlane::p2p
