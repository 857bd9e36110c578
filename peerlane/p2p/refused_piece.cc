// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/refused_piece.h"

#include "peerlane/os/cuda.h"
#include "peerlane/p2p/p2p_process.h"

namespace peerlane::p2p {
namespace {

// As the calls look for memory of this side that a stream of CUDA is to reach.
bool isOutOfReach(const LocalPiece& piece, Access access, const Pairwise& pair) {
  SegmentBook& book = P2pProcess::instance().segments();
  if (const auto own = book.hostRegion(piece.address, piece.bytes, access, pair.context()))
    return !allows(own->access(), access);
  const auto region = pair.context()->regionOf(piece.address, piece.bytes, access);
  return !region.isOk() || region->device().kind == DeviceKind::kHost;
}

bool isOfAPiece(const Status& why) {
  return why.code() == Code::kInvalidArgument || why.code() == Code::kPermissionDenied;
}

}  // namespace

std::optional<size_t> refusedPiece(const Status& why, Direction direction,
                                   std::span<const CopyPiece> pieces, const OperationStream& stream,
                                   const Pairwise& pair) {
  if (!isOfAPiece(why)) return std::nullopt;
  const SegmentBook& book = P2pProcess::instance().segments();
  const Access wanted = direction == Direction::kPut ? Access::kRemoteWrite : Access::kRemoteRead;
  for (size_t at = 0; at < pieces.size(); ++at) {
    const CopyPiece& piece = pieces[at];
    if (stream.device && isOutOfReach({piece.local, piece.bytes}, Access::kLocal, pair)) return at;
    if (!book.find(pair.other(), piece.remote, piece.bytes, wanted).isOk()) return at;
  }
  return std::nullopt;
}

std::optional<size_t> refusedPiece(const Status& why, Access access,
                                   std::span<const LocalPiece> pieces,
                                   const OperationStream& stream, const Pairwise& pair) {
  if (!isOfAPiece(why)) return std::nullopt;
  for (size_t at = 0; at < pieces.size(); ++at) {
    const LocalPiece& piece = pieces[at];
    if (stream.device ? isOutOfReach(piece, access, pair)
                      : pair.hasGpu() && cuda::gpuOf(piece.address).has_value())
      return at;
  }
  return std::nullopt;
}

}  // namespace peerlane::p2p
