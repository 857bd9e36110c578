// SPDX-License-Identifier: Apache-2.0
//
// PairCommunicator: send and receive.
#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "peerlane/channel/message/staged/bounce_cut.h"
#include "peerlane/os/cuda.h"
#include "peerlane/p2p/pair/pair_communicator.h"

namespace peerlane::p2p {
namespace {

// Of one list message (Communicator::sendList).
constexpr size_t kMostPieces = 4096;
// Of one message on a host stream (Communicator::Group::asOneMessage).
constexpr size_t kMostHostPieces = 65535;
// Where messages are staged: of one message, the same at both sides, whatever they have for
// staging.
constexpr uint64_t kMostStagedBytes = 8 << 20;
// And of one post: a stream takes 1000 pieces of work in one, three for each chunk.
constexpr uint64_t kMostStagedChunks = 300;

// Those that go in one post. `ring`: Communicator::stagingRingBytes().
std::span<const MessageBlock> firstPart(std::span<const MessageBlock> blocks, uint64_t ring) {
  if (ring == 0) return blocks.first(std::min(blocks.size(), kMostPieces));
  uint64_t chunks = 0;
  size_t count = 0;
  while (count < blocks.size() &&
         (chunks += BounceCut::of(blocks[count].bytes, ring).chunks) <= kMostStagedChunks)
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

}  // namespace

Status PairCommunicator::send(std::span<const LocalPiece> pieces, const OperationStream& stream) {
  if (options_.kind == P2P_RECEIVER)
    return Status(Code::kInvalidArgument,
                  "this side is the P2P_RECEIVER; the P2P_SENDER, or P2P_BIDIRECTIONAL, sends");
  return post(true, pieces, stream);
}

Status PairCommunicator::recv(std::span<const LocalPiece> pieces, const OperationStream& stream) {
  if (options_.kind == P2P_SENDER)
    return Status(Code::kInvalidArgument,
                  "this side is the P2P_SENDER; the P2P_RECEIVER, or P2P_BIDIRECTIONAL, receives");
  return post(false, pieces, stream);
}

Status PairCommunicator::post(bool isSend, std::span<const LocalPiece> pieces,
                              const OperationStream& stream) {
  if (!communicator_)
    return Status(Code::kNotSupported,
                  "this communicator was made for put and get alone (enableTwoSidedBuffer is false "
                  "at one side)");
  if (!stream.device) return postOnQueue(isSend, pieces, stream);
  std::atomic<uint64_t>& count = isSend ? sends_ : receives_;
  PostName name{isSend ? "send" : "receive", 0};
  const std::lock_guard lock(isSend ? sendMutex_ : recvMutex_);
  // Before anything is posted: what is wrong with the last piece ends all of it. The sender copies,
  // so only the receiver's memory is reached by the other side.
  const Access access = isSend ? Access::kLocal : Access::kRemoteWrite;
  const uint64_t ring = communicator_->stagingRingBytes(isRoot_ ? 1 : 0);
  if (pieces.size() == 1 && ring == 0) {  // allocates nothing
    const LocalPiece& piece = pieces.front();
    PEERLANE_ASSIGN(const Region region, localRegion(piece, access, /*onDevice=*/true));
    const MessageBlock block{&region, static_cast<uint64_t>(piece.address - region.data()),
                             piece.bytes};
    PEERLANE_ASSIGN(const Transfer transfer, postOnDevice(isSend, {&block, 1}, stream));
    name.number = ++count;
    posted(transfer, stream, name);
    return Status::ok();
  }
  std::deque<Region> regions;  // blocks point into it
  std::vector<MessageBlock> all;
  all.reserve(pieces.size());
  for (const LocalPiece& piece : pieces) {
    if (regions.empty() || !isWithin(regions.back(), piece)) {
      PEERLANE_ASSIGN(Region region, localRegion(piece, access, /*onDevice=*/true));
      regions.push_back(std::move(region));
    }
    all.push_back({&regions.back(), static_cast<uint64_t>(piece.address - regions.back().data()),
                   piece.bytes});
  }
  // Both sides cut alike: they name as many pieces, of the same sizes.
  if (ring != 0) all = splitLong(all);
  for (std::span<const MessageBlock> blocks = all; !blocks.empty();) {
    const std::span<const MessageBlock> part = firstPart(blocks, ring);
    PEERLANE_ASSIGN(const Transfer transfer, postOnDevice(isSend, part, stream));
    if (name.number == 0) name.number = ++count;
    posted(transfer, stream, name);
    blocks = blocks.subspan(part.size());
  }
  return Status::ok();
}

Status PairCommunicator::postOnQueue(bool isSend, std::span<const LocalPiece> pieces,
                                     const OperationStream& stream) {
  for (const LocalPiece& piece : pieces) PEERLANE_RETURN_IF_ERROR(checkOnHost(piece, isSend));
  std::unique_lock<std::mutex> lock;
  if (pieces.size() > kMostHostPieces) lock = std::unique_lock(isSend ? sendMutex_ : recvMutex_);
  PostName name{isSend ? "send" : "receive", 0};
  for (; !pieces.empty(); pieces = pieces.subspan(std::min(pieces.size(), kMostHostPieces))) {
    const auto part = pieces.first(std::min(pieces.size(), kMostHostPieces));
    PEERLANE_ASSIGN(const Transfer transfer, postOnHost(isSend, part, stream));
    if (name.number == 0) name.number = ++(isSend ? sends_ : receives_);
    posted(transfer, stream, name);
  }
  return Status::ok();
}

Result<Transfer> PairCommunicator::postOnHost(bool isSend, std::span<const LocalPiece> pieces,
                                              const OperationStream& stream) {
  const Rank other = isRoot_ ? 1 : 0;
  MessageOptions options;
  options.stream = stream.host->stream.get();
  // What is registered the other side may map. The rest it reads by its address, or through a ring.
  std::optional<Region> region;
  const auto find = [&](const LocalPiece& piece) {
    if (!region || !isWithin(*region, piece))
      region = book_.hostRegion(piece.address, piece.bytes,
                                isSend ? Access::kRemoteRead : Access::kLocal, context_);
    return region && (!isSend || allows(region->access(), Access::kRemoteRead));
  };
  if (pieces.size() == 1) {
    const LocalPiece& piece = pieces.front();
    if (find(piece)) {
      const auto offset = static_cast<uint64_t>(piece.address - region->data());
      return isSend ? communicator_->send(other, *region, offset, piece.bytes, options)
                    : communicator_->recv(other, *region, offset, piece.bytes, options);
    }
    const std::span<std::byte> bytes(piece.address, piece.bytes);
    return isSend ? communicator_->send(other, std::span<const std::byte>(bytes), options)
                  : communicator_->recv(other, bytes, options);
  }
  Communicator::Group group = communicator_->group();
  for (const LocalPiece& piece : pieces) {
    const std::span<std::byte> bytes(piece.address, piece.bytes);
    if (find(piece)) {
      const auto offset = static_cast<uint64_t>(piece.address - region->data());
      isSend ? group.send(other, *region, offset, piece.bytes)
             : group.recv(other, *region, offset, piece.bytes);
    } else {
      isSend ? group.send(other, std::span<const std::byte>(bytes)) : group.recv(other, bytes);
    }
  }
  return group.asOneMessage().post(options);
}

// A wrong address would end the process wherever the bytes are copied, also in another thread. That
// memory which was there is unmapped later nobody notices.
Status PairCommunicator::checkOnHost(const LocalPiece& piece, bool isSend) {
  if (const auto gpu = hasGpu() ? cuda::gpuOf(piece.address) : std::nullopt)
    return Status(Code::kInvalidArgument,
                  "memory of cuda:" + std::to_string(*gpu) +
                      " on a host stream; messages of a GPU go on a stream of CUDA");
  return checkTouch(piece, isSend ? Touch::kRead : Touch::kWrite);
}

Status PairCommunicator::checkTouch(const LocalPiece& piece, Touch touch) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15, kOther = 0xc2b2ae3d27d4eb4f;
  const uint64_t address = reinterpret_cast<uint64_t>(piece.address);
  uint64_t hash =
      (address * kOdd) ^ ((piece.bytes * 2 + (touch == Touch::kWrite ? 1 : 0)) * kOther);
  hash |= 1;  // 0 is none
  std::atomic<uint64_t>& known = checked_[hash >> 58];
  if (known.load(std::memory_order_relaxed) == hash) return Status::ok();
  PEERLANE_RETURN_IF_ERROR(checkTouchable(piece.address, piece.bytes, touch));
  known.store(hash, std::memory_order_relaxed);
  return Status::ok();
}

Result<Transfer> PairCommunicator::postOnDevice(bool isSend, std::span<const MessageBlock> blocks,
                                                const OperationStream& stream) {
  const Rank other = isRoot_ ? 1 : 0;
  MessageOptions options;
  options.deviceStream = stream.device;
  if (blocks.size() == 1) {
    const MessageBlock& block = blocks.front();
    return isSend ? communicator_->send(other, *block.region, block.offset, block.bytes, options)
                  : communicator_->recv(other, *block.region, block.offset, block.bytes, options);
  }
  return isSend ? communicator_->sendList(other, blocks, options)
                : communicator_->recvList(other, blocks, options);
}

}  // namespace peerlane::p2p
