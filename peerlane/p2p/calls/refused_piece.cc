// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/calls/refused_piece.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "peerlane/os/cuda.h"
#include "peerlane/p2p/process/p2p_process.h"

namespace peerlane::p2p {
namespace {

// Whether a stream of CUDA cannot reach the piece. LocalMemory::region() finds it the same way.
bool isOutOfReach(const LocalPiece& piece, Access access, const PairCommunicator& pair) {
  SegmentRegistry& segments = P2pProcess::instance().segments();
  if (const auto own = segments.hostRegion(piece.address, piece.bytes, access, pair.context()))
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
                                   const PairCommunicator& pair) {
  if (!isOfAPiece(why)) return std::nullopt;
  const ImportedSegments& imports = P2pProcess::instance().imports();
  const Access wanted = direction == Direction::kPut ? Access::kRemoteWrite : Access::kRemoteRead;
  for (size_t at = 0; at < pieces.size(); ++at) {
    const CopyPiece& piece = pieces[at];
    if (stream.device && isOutOfReach({piece.local, piece.bytes}, Access::kLocal, pair)) return at;
    SegmentName name;
    if (!imports.find(pair.other(), piece.remote, piece.bytes, wanted, name).isOk()) return at;
  }
  return std::nullopt;
}

uint64_t destinationOf(const CopyPiece& piece, Direction direction) {
  return direction == Direction::kPut ? piece.remote : reinterpret_cast<uint64_t>(piece.local);
}

std::optional<std::pair<size_t, size_t>> overlappingPieces(const Status& why, Direction direction,
                                                           std::span<const CopyPiece> pieces) {
  if (why.code() != Code::kInvalidArgument) return std::nullopt;
  std::vector<size_t> order(pieces.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto place = [&](size_t at) { return destinationOf(pieces[at], direction); };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return place(a) < place(b); });
  for (size_t i = 1; i < order.size(); ++i)
    if (place(order[i]) - place(order[i - 1]) < pieces[order[i - 1]].bytes)
      return std::minmax(order[i - 1], order[i]);
  return std::nullopt;
}

std::optional<size_t> refusedPiece(const Status& why, Access access,
                                   std::span<const LocalPiece> pieces,
                                   const OperationStream& stream, const PairCommunicator& pair) {
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
