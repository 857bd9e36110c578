// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/pair/pair_copies.h"

#include <deque>
#include <utility>
#include <vector>

namespace peerlane::p2p {
namespace {

// How the copy touches the memory of this side.
Touch touchOf(Direction direction) {
  return direction == Direction::kGet ? Touch::kWrite : Touch::kRead;
}

}  // namespace

PairCopies::PairCopies(Peer peer, const ProcessToken& other, const ImportedSegments& imports,
                       RemoteSegmentCache& segments, LocalMemory& memory, PendingTransfers& pending)
    : peer_(std::move(peer)),
      other_(other),
      imports_(imports),
      segments_(segments),
      memory_(memory),
      pending_(pending) {}

Answer PairCopies::findRemote(Direction direction, const CopyPiece& piece, Remote& found) {
  const Access wanted = direction == Direction::kPut ? Access::kRemoteWrite : Access::kRemoteRead;
  PEERLANE_RETURN_IF_ERROR(imports_.find(other_, piece.remote, piece.bytes, wanted, found.name));
  return segments_.find(found.name, found.region);
}

Result<Region> PairCopies::findLocal(Direction direction, const LocalPiece& piece, bool forGpu) {
  PEERLANE_ASSIGN(Region region, memory_.region(piece, Access::kLocal, forGpu));
  // That memory was registered does not say that it is writable.
  if (region.device().kind == DeviceKind::kHost)
    PEERLANE_RETURN_IF_ERROR(memory_.checkTouch(piece, touchOf(direction)));
  return region;
}

Status PairCopies::post(Direction direction, std::span<const Block> blocks,
                        const OperationStream& stream) {
  const bool isPut = direction == Direction::kPut;
  PostOptions options;
  options.deviceStream = stream.device;
  if (stream.host) options.stream = stream.host->stream.get();
  PEERLANE_ASSIGN(const Transfer transfer,
                  isPut ? put(peer_, blocks, options) : get(peer_, blocks, options));
  const PostName name = isPut ? PostName{"put", ++puts_} : PostName{"get", ++gets_};
  stream.record(transfer, name, pending_);
  return Status::ok();
}

// The common case, which allocates nothing.
Answer PairCopies::copyOne(Direction direction, const CopyPiece& piece,
                           const OperationStream& stream) {
  const LocalPiece here{piece.local, piece.bytes};
  PEERLANE_ASSIGN(const Region local, findLocal(direction, here, static_cast<bool>(stream.device)));
  Remote remote;
  PEERLANE_RETURN_IF_ERROR(findRemote(direction, piece, remote));
  const Block block{&local, offsetIn(local, here), &remote.region,
                    piece.remote - remote.name.address, piece.bytes};
  return post(direction, {&block, 1}, stream);
}

Answer PairCopies::copy(Direction direction, std::span<const CopyPiece> pieces,
                        const OperationStream& stream) {
  if (pieces.size() == 1) return copyOne(direction, pieces.front(), stream);
  const bool forGpu = static_cast<bool>(stream.device);
  std::deque<Region> locals;  // blocks point into both
  std::deque<Remote> remotes;
  std::vector<Block> blocks;
  blocks.reserve(pieces.size());
  for (const CopyPiece& piece : pieces) {
    const LocalPiece local{piece.local, piece.bytes};
    if (locals.empty() || !isWithin(locals.back(), local)) {
      PEERLANE_ASSIGN(Region region, findLocal(direction, local, forGpu));
      locals.push_back(std::move(region));
    } else if (locals.back().device().kind == DeviceKind::kHost) {
      PEERLANE_RETURN_IF_ERROR(memory_.checkTouch(local, touchOf(direction)));
    }
    if (remotes.empty() || !remotes.back().name.holds(piece.remote, piece.bytes)) {
      Remote remote;
      PEERLANE_RETURN_IF_ERROR(findRemote(direction, piece, remote));
      remotes.push_back(std::move(remote));
    }
    blocks.push_back({&locals.back(), offsetIn(locals.back(), local), &remotes.back().region,
                      piece.remote - remotes.back().name.address, piece.bytes});
  }
  return post(direction, blocks, stream);
}

}  // namespace peerlane::p2p
