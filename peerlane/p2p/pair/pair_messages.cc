// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/pair/pair_messages.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "peerlane/channel/message/staged/staged_chunks.h"
#include "peerlane/os/cuda.h"

namespace peerlane::p2p {
namespace {

// The most pieces of one list message (Communicator::sendList).
constexpr size_t kMostPieces = 4096;
// The most pieces of one message on a host stream (Communicator::Group::asOneMessage).
constexpr size_t kMostHostPieces = 65535;
// The most bytes of one message where messages are staged. Both sides cut at the same places, so it
// does not depend on the memory that a side has for staging.
constexpr uint64_t kMostStagedBytes = 8 << 20;
// The most chunks of one post where messages are staged: a stream takes 1000 pieces of work in one
// post, and a chunk is three.
constexpr uint64_t kMostStagedChunks = 300;

// The blocks that go in one post. `ring`: Communicator::stagingRingBytes().
std::span<const MessageBlock> firstPart(std::span<const MessageBlock> blocks, uint64_t ring) {
  if (ring == 0) return blocks.first(std::min(blocks.size(), kMostPieces));
  uint64_t chunks = 0;
  size_t count = 0;
  while (count < blocks.size() &&
         (chunks += ChunkCut::of(blocks[count].bytes, ring).chunks) <= kMostStagedChunks)
    ++count;
  return blocks.first(std::max<size_t>(count, 1));
}

std::vector<MessageBlock> splitLong(std::span<const MessageBlock> blocks) {
  std::vector<MessageBlock> all;
  for (MessageBlock block : blocks) {
    for (; block.bytes > kMostStagedBytes; block.bytes -= kMostStagedBytes) {
      all.push_back({block.region, block.offset, kMostStagedBytes});
      block.offset += kMostStagedBytes;
    }
    all.push_back(block);
  }
  return all;
}

// The sender copies, so the other side reaches the memory of the receiver only.
Access accessOnDevice(MessageRole role) {
  return role == MessageRole::kSender ? Access::kLocal : Access::kRemoteWrite;
}

}  // namespace

PairMessages::PairMessages(std::unique_ptr<Communicator> communicator, Rank other, bool hasGpu,
                           LocalMemory& memory, PendingTransfers& pending)
    : communicator_(std::move(communicator)),
      other_(other),
      hasGpu_(hasGpu),
      memory_(memory),
      pending_(pending) {}

Status PairMessages::post(MessageRole role, std::span<const LocalPiece> pieces,
                          const OperationStream& stream) {
  if (!stream.device) return postOnHost(role, pieces, stream);
  Sequence& sequence = of(role);
  const MutexLock lock(sequence.mutex);
  const uint64_t ring = communicator_->stagingRingBytes(other_);
  if (pieces.size() == 1 && ring == 0)
    return postOneOnDevice(role, sequence, pieces.front(), stream);
  return postOnDevice(role, sequence, pieces, ring, stream);
}

// The common case, which allocates nothing.
Status PairMessages::postOneOnDevice(MessageRole role, Sequence& sequence, const LocalPiece& piece,
                                     const OperationStream& stream) {
  PEERLANE_ASSIGN(const Region region,
                  memory_.region(piece, accessOnDevice(role), /*forGpu=*/true));
  const MessageBlock block{&region, offsetIn(region, piece), piece.bytes};
  PEERLANE_ASSIGN(const Transfer transfer, postBlocks(role, {&block, 1}, stream));
  stream.record(transfer, {sequence.call, ++sequence.calls}, pending_);
  return Status::ok();
}

Status PairMessages::postOnDevice(MessageRole role, Sequence& sequence,
                                  std::span<const LocalPiece> pieces, uint64_t ring,
                                  const OperationStream& stream) {
  // All regions are found before the first post, so that a bad piece is refused with all others.
  std::deque<Region> regions;  // blocks point into it
  std::vector<MessageBlock> all;
  all.reserve(pieces.size());
  for (const LocalPiece& piece : pieces) {
    if (regions.empty() || !isWithin(regions.back(), piece)) {
      PEERLANE_ASSIGN(Region region, memory_.region(piece, accessOnDevice(role), /*forGpu=*/true));
      regions.push_back(std::move(region));
    }
    all.push_back({&regions.back(), offsetIn(regions.back(), piece), piece.bytes});
  }
  // Both sides name as many pieces of the same sizes, so they cut at the same places.
  if (ring != 0) all = splitLong(all);
  PostName name{sequence.call, 0};
  for (std::span<const MessageBlock> blocks = all; !blocks.empty();) {
    const std::span<const MessageBlock> part = firstPart(blocks, ring);
    PEERLANE_ASSIGN(const Transfer transfer, postBlocks(role, part, stream));
    if (name.number == 0) name.number = ++sequence.calls;
    stream.record(transfer, name, pending_);
    blocks = blocks.subspan(part.size());
  }
  return Status::ok();
}

Result<Transfer> PairMessages::postBlocks(MessageRole role, std::span<const MessageBlock> blocks,
                                          const OperationStream& stream) {
  const bool isSend = role == MessageRole::kSender;
  MessageOptions options;
  options.deviceStream = stream.device;
  if (blocks.size() == 1) {
    const MessageBlock& block = blocks.front();
    return isSend ? communicator_->send(other_, *block.region, block.offset, block.bytes, options)
                  : communicator_->recv(other_, *block.region, block.offset, block.bytes, options);
  }
  return isSend ? communicator_->sendList(other_, blocks, options)
                : communicator_->recvList(other_, blocks, options);
}

Status PairMessages::postOnHost(MessageRole role, std::span<const LocalPiece> pieces,
                                const OperationStream& stream) {
  for (const LocalPiece& piece : pieces) PEERLANE_RETURN_IF_ERROR(checkOnHost(role, piece));
  Sequence& sequence = of(role);
  if (pieces.size() <= kMostHostPieces) return postHostParts(role, sequence, pieces, stream);
  const MutexLock lock(sequence.mutex);
  return postHostParts(role, sequence, pieces, stream);
}

// Requires: the caller holds the mutex of the sequence where the pieces make more than one part.
Status PairMessages::postHostParts(MessageRole role, Sequence& sequence,
                                   std::span<const LocalPiece> pieces,
                                   const OperationStream& stream) {
  PostName name{sequence.call, 0};
  while (!pieces.empty()) {
    const auto part = pieces.first(std::min(pieces.size(), kMostHostPieces));
    PEERLANE_ASSIGN(const Transfer transfer, postHostPart(role, part, stream));
    if (name.number == 0) name.number = ++sequence.calls;
    stream.record(transfer, name, pending_);
    pieces = pieces.subspan(part.size());
  }
  return Status::ok();
}

// A region of the piece that the other side may map, where the piece is in a segment. The other
// side reads any other memory by its address, or through a ring.
std::optional<Region> PairMessages::registered(MessageRole role, const LocalPiece& piece) {
  const bool isSend = role == MessageRole::kSender;
  auto region = memory_.hostSegment(piece, isSend ? Access::kRemoteRead : Access::kLocal);
  if (region && isSend && !allows(region->access(), Access::kRemoteRead)) return std::nullopt;
  return region;
}

Result<Transfer> PairMessages::postHostPiece(MessageRole role, const LocalPiece& piece,
                                             const MessageOptions& options) {
  const bool isSend = role == MessageRole::kSender;
  if (const auto region = registered(role, piece)) {
    const uint64_t offset = offsetIn(*region, piece);
    return isSend ? communicator_->send(other_, *region, offset, piece.bytes, options)
                  : communicator_->recv(other_, *region, offset, piece.bytes, options);
  }
  const std::span<std::byte> bytes(piece.address, piece.bytes);
  return isSend ? communicator_->send(other_, std::span<const std::byte>(bytes), options)
                : communicator_->recv(other_, bytes, options);
}

Result<Transfer> PairMessages::postHostPart(MessageRole role, std::span<const LocalPiece> pieces,
                                            const OperationStream& stream) {
  MessageOptions options;
  options.stream = stream.host->stream.get();
  if (pieces.size() == 1) return postHostPiece(role, pieces.front(), options);
  const bool isSend = role == MessageRole::kSender;
  Communicator::Group group = communicator_->group();
  std::optional<Region> region;  // of the piece before: most pieces of a call are in one segment
  for (const LocalPiece& piece : pieces) {
    if (!region || !isWithin(*region, piece)) region = registered(role, piece);
    if (region) {
      const uint64_t offset = offsetIn(*region, piece);
      isSend ? group.send(other_, *region, offset, piece.bytes)
             : group.recv(other_, *region, offset, piece.bytes);
    } else {
      const std::span<std::byte> bytes(piece.address, piece.bytes);
      isSend ? group.send(other_, std::span<const std::byte>(bytes)) : group.recv(other_, bytes);
    }
  }
  return group.asOneMessage().post(options);
}

Status PairMessages::checkOnHost(MessageRole role, const LocalPiece& piece) {
  if (const auto gpu = hasGpu_ ? cuda::gpuOf(piece.address) : std::nullopt)
    return Status(Code::kInvalidArgument,
                  "memory of cuda:" + std::to_string(*gpu) +
                      " on a host stream; messages of a GPU go on a stream of CUDA");
  return memory_.checkTouch(piece, role == MessageRole::kSender ? Touch::kRead : Touch::kWrite);
}

}  // namespace peerlane::p2p
