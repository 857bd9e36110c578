// SPDX-License-Identifier: Apache-2.0
//
// SegmentProof: what an importer shows of a segment's key to whoever says that he is its owner. Who
// is not learns nothing of the key, and cannot use the proof: it holds between these two contexts
// alone, in this direction. Plain functions.
#pragma once

#include <array>
#include <cstddef>

#include "peerlane/p2p/segment/segment_name.h"
#include "peerlane/session/wire/ticket.h"

namespace peerlane::p2p {

using SegmentProof = std::array<std::byte, 32>;

// The two ends of the connection that a segment is asked for through.
struct AskEnds {
  ContextId asker;
  ContextId owner;
};

SegmentProof makeProof(uint64_t number, const SegmentKey& key, const AskEnds& ends);
// In constant time.
bool isProof(const SegmentProof& proof, uint64_t number, const SegmentKey& key,
             const AskEnds& ends);

}  // namespace peerlane::p2p
