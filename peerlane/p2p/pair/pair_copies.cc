// SPDX-License-Identifier: Apache-2.0
//
// PairCommunicator: put and get, and how memory of either side is found by its address.
#include <deque>
#include <string>
#include <utility>

#include "peerlane/p2p/pair/pair_communicator.h"

namespace peerlane::p2p {
namespace {

Touch touchOf(Direction direction) {
  return direction == Direction::kGet ? Touch::kWrite : Touch::kRead;
}

// It was reached, and its owner has taken it back.
bool wasUnregistered(const RemoteRegion& remote) {
  const ImportSlot& slot = *remote.slot();
  return slot.state.load(std::memory_order_acquire) == ImportSlot::State::kReady &&
         !slot.region->gate.open();
}

}  // namespace

bool PairCommunicator::isWithin(const Region& region, const LocalPiece& piece) const {
  const auto offset = static_cast<uint64_t>(piece.address - region.data());
  return offset <= region.bytes() && piece.bytes <= region.bytes() - offset;
}

// `onDevice`: a GPU will reach it.
Result<Region> PairCommunicator::localRegion(const LocalPiece& piece, Access access,
                                             bool onDevice) {
  if (auto own = book_.hostRegion(piece.address, piece.bytes, access, context_)) {
    if (allows(own->access(), access)) return *own;
    return Status(Code::kPermissionDenied,
                  "the host memory to receive into is registered without the right to write "
                  "(P2P_SEGMENT_READ_ONLY)");
  }
  auto region = context_->regionOf(piece.address, piece.bytes, access);
  const bool isHost = region.isOk() ? region->device().kind == DeviceKind::kHost
                                    : region.status().code() == Code::kInvalidArgument;
  if (!isHost || !onDevice) return region;
  return Status(Code::kInvalidArgument,
                "host memory on a stream of CUDA has to be registered (P2PRegisterHostMem): it is "
                "pinned for the GPU" +
                    (region.isOk() ? "" : "; " + std::string(region.status().message())));
}

void PairCommunicator::ask(const SegmentName& name) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(attached_[name.number].wasAsked, true)) return;
  }
  PairNote note;
  note.type = PairNote::Type::kAsk;
  note.segment = name.number;
  note.proof = makeProof(name.number, name.key, {self_, peer_.core()->context()});
  if (say(note).isOk()) return;
  // A silent peer is told nothing; it is asked again once it is heard.
  const std::lock_guard lock(mutex_);
  if (const auto found = attached_.find(name.number); found != attached_.end())
    found->second.wasAsked = false;
}

void PairCommunicator::forget(const SegmentName& name) {
  Attached gone;  // outlives the lock: a region is let go of with its last handle
  const std::lock_guard lock(mutex_);
  if (const auto found = attached_.find(name.number); found != attached_.end()) {
    gone = std::move(found->second);
    attached_.erase(found);
  }
}

// Mostly the answer has come long before: it was asked for when the segment was imported.
Answer PairCommunicator::remoteRegion(const SegmentName& name, RemoteRegion& found) {
  using Told = std::optional<Result<RemoteRegion>>;
  // Whether it need not be waited for: it is there, or nobody wants it any more.
  const auto isSettled = [&](Told& answer) {
    const std::lock_guard lock(mutex_);
    const auto known = attached_.find(name.number);
    if (known != attached_.end()) answer = known->second.remote;
    return known == attached_.end() || answer.has_value();
  };
  Told remote;
  if (!isSettled(remote) || !remote) {
    ask(name);
    PeerCore& core = *peer_.core();
    const auto come = [&] { return isSettled(remote) || !core.usable().isOk(); };
    const auto words = [&] { return core.name() + " to say how a segment of it is reached"; };
    PEERLANE_RETURN_IF_ERROR(
        core.progress().waitAsleep(come, Progress::deadlineIn(options_.timeout), words));
    if (!remote) {
      PEERLANE_RETURN_IF_ERROR(core.usable());
      return notFound("the segment was taken out of use (P2PUnimportSegment) meanwhile");
    }
  }
  const bool isGone = remote->isOk() && wasUnregistered(**remote);
  // A refusal need not be the last word: it may have been registered meanwhile.
  if (!remote->isOk() || isGone) forget(name);
  const std::string segment = "the imported segment " + rangeText(name.address, name.bytes);
  if (isGone) return notFound(segment + " was unregistered by the process that it is of");
  if (remote->status().code() == Code::kInvalidArgument)
    return notFound(std::string(remote->status().message())).withContext(segment);
  PEERLANE_RETURN_IF_ERROR(remote->status());
  found = **remote;
  return Status::ok();
}

Result<Transfer> PairCommunicator::copyBlocks(Direction direction, std::span<const Block> blocks,
                                              const OperationStream& stream) {
  PostOptions options;
  options.deviceStream = stream.device;
  if (stream.host) options.stream = stream.host->stream.get();
  return direction == Direction::kPut ? put(peer_, blocks, options) : get(peer_, blocks, options);
}

Answer PairCommunicator::findRemote(const CopyPiece& piece, Access access, Remote& found) {
  SegmentName name;
  PEERLANE_RETURN_IF_ERROR(book_.find(other_, piece.remote, piece.bytes, access, name));
  found.address = name.address;
  found.bytes = name.bytes;
  return remoteRegion(name, found.region);
}

// Of this side's memory. What may be registered need not be writable.
Result<Region> PairCommunicator::copyRegion(const LocalPiece& piece, Direction direction,
                                            bool onDevice) {
  PEERLANE_ASSIGN(Region region, localRegion(piece, Access::kLocal, onDevice));
  if (region.device().kind == DeviceKind::kHost)
    PEERLANE_RETURN_IF_ERROR(checkTouch(piece, touchOf(direction)));
  return region;
}

Answer PairCommunicator::copy(Direction direction, std::span<const CopyPiece> pieces,
                              const OperationStream& stream) {
  const Access wanted = direction == Direction::kPut ? Access::kRemoteWrite : Access::kRemoteRead;
  const bool onDevice = static_cast<bool>(stream.device);
  const auto nextName = [&] {
    return direction == Direction::kPut ? PostName{"put", ++puts_} : PostName{"get", ++gets_};
  };
  if (pieces.size() == 1) {  // allocates nothing
    const CopyPiece& piece = pieces.front();
    PEERLANE_ASSIGN(const Region local,
                    copyRegion({piece.local, piece.bytes}, direction, onDevice));
    Remote remote;
    PEERLANE_RETURN_IF_ERROR(findRemote(piece, wanted, remote));
    const Block block{&local, static_cast<uint64_t>(piece.local - local.data()), &remote.region,
                      piece.remote - remote.address, piece.bytes};
    PEERLANE_ASSIGN(const Transfer transfer, copyBlocks(direction, {&block, 1}, stream));
    posted(transfer, stream, nextName());
    return Status::ok();
  }
  std::deque<Region> locals;  // blocks point into both
  std::deque<Remote> remotes;
  std::vector<Block> blocks;
  blocks.reserve(pieces.size());
  for (const CopyPiece& piece : pieces) {
    const LocalPiece local{piece.local, piece.bytes};
    if (locals.empty() || !isWithin(locals.back(), local)) {
      PEERLANE_ASSIGN(Region region, copyRegion(local, direction, onDevice));
      locals.push_back(std::move(region));
    } else if (locals.back().device().kind == DeviceKind::kHost) {
      PEERLANE_RETURN_IF_ERROR(checkTouch(local, touchOf(direction)));
    }
    if (remotes.empty() || !remotes.back().holds(piece)) {
      Remote remote;
      PEERLANE_RETURN_IF_ERROR(findRemote(piece, wanted, remote));
      remotes.push_back(std::move(remote));
    }
    blocks.push_back({&locals.back(), static_cast<uint64_t>(piece.local - locals.back().data()),
                      &remotes.back().region, piece.remote - remotes.back().address, piece.bytes});
  }
  PEERLANE_ASSIGN(const Transfer transfer, copyBlocks(direction, blocks, stream));
  posted(transfer, stream, nextName());
  return Status::ok();
}

}  // namespace peerlane::p2p
