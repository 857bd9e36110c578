// SPDX-License-Identifier: Apache-2.0
//
// Refused piece: which piece of a list is the reason that the whole list was refused. The parts
// that refuse a list know regions and not the arrays of the caller, and telling them would cost the
// calls that succeed; so it is found out after the refusal. Plain functions; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "peerlane/p2p/pair/pair_communicator.h"
#include "peerlane/p2p/stream/operation_stream.h"

namespace peerlane::p2p {

// `why`: the answer of PairCommunicator::copy. Nothing: no piece is the reason, or none is now.
std::optional<size_t> refusedPiece(const Status& why, Direction direction,
                                   std::span<const CopyPiece> pieces, const OperationStream& stream,
                                   const PairCommunicator& pair);
// The address that the copy writes to: here for kGet, in the other process for kPut.
uint64_t destinationOf(const CopyPiece& piece, Direction direction);
// Two pieces that are written to the same bytes, in their order. Nothing: as above.
std::optional<std::pair<size_t, size_t>> overlappingPieces(const Status& why, Direction direction,
                                                           std::span<const CopyPiece> pieces);
// `why`: the answer of PairCommunicator::send (`access` is kLocal) or recv (kRemoteWrite).
std::optional<size_t> refusedPiece(const Status& why, Access access,
                                   std::span<const LocalPiece> pieces,
                                   const OperationStream& stream, const PairCommunicator& pair);

}  // namespace peerlane::p2p
