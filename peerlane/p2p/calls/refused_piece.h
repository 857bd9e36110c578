// SPDX-License-Identifier: Apache-2.0
//
// Which piece of a list was the reason why all of it was refused. The calls that refuse know
// memory, not the caller's arrays, and to keep that costs those that go well; so it is found out
// afterwards. Plain functions.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <utility>

#include "peerlane/p2p/pair/pair_communicator.h"
#include "peerlane/p2p/stream/operation_stream.h"

namespace peerlane::p2p {

// `why` is what PairCommunicator::copy said. Nothing: none of them, or none of them any more.
std::optional<size_t> refusedPiece(const Status& why, Direction direction,
                                   std::span<const CopyPiece> pieces, const OperationStream& stream,
                                   const PairCommunicator& pair);
// Where it is written.
uint64_t destinationOf(const CopyPiece& piece, Direction direction);
// Two that are written to the same bytes, in their order. Nothing, as above.
std::optional<std::pair<size_t, size_t>> overlappingPieces(const Status& why, Direction direction,
                                                           std::span<const CopyPiece> pieces);
// What PairCommunicator::send said (`access` is kLocal) or recv (kRemoteWrite).
std::optional<size_t> refusedPiece(const Status& why, Access access,
                                   std::span<const LocalPiece> pieces,
                                   const OperationStream& stream, const PairCommunicator& pair);

}  // namespace peerlane::p2p
