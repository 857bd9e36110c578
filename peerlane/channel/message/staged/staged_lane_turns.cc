// SPDX-License-Identifier: Apache-2.0
//
// StagedLane's turns. In each direction messages get room in the ring and go on the wire in the
// order of posting; each step is taken as soon as the one before has ended.
#include <algorithm>
#include <utility>

#include "peerlane/channel/message/staged/staged_lane.h"
#include "peerlane/core/mutex.h"
#include "peerlane/program/device/poison.h"

namespace peerlane {
namespace {

// No post of an honest peer has more: a stream would not take it.
constexpr uint64_t kMostChunks = 1 << 16;
// A message of which all is here, or just being answered for, may be known to have been received at
// the other side, which has closed since.
constexpr std::chrono::milliseconds kGrace{200};

}  // namespace

std::string StagedLane::nameOfMessage(const StagedMessage& message) const {
  return (message.isSend ? "send " : "receive ") + std::to_string(message.number) +
         (message.isSend ? " to" : " from") + " rank " + std::to_string(rank()) + " on a stream";
}

bool StagedLane::takeIncoming() {
  if (!hasIncoming_.load(std::memory_order_acquire)) return false;
  std::vector<std::shared_ptr<StagedMessage>> come;
  {
    const MutexLock lock(stateMutex_);
    hasIncoming_.store(false, std::memory_order_relaxed);
    come.swap(incoming_);
  }
  for (auto& message : come)
    (message->isSend ? sends_ : receives_).messages.push_back(std::move(message));
  return !come.empty();
}

bool StagedLane::turn() {
  bool moved = takeIncoming();
  if (!failed_.load(std::memory_order_acquire) && !idle() && env_.peer->failureCode() != Code::kOk)
    if (const Status why = env_.peer->failure(); !why.isOk()) fail(why, /*tellPeer=*/false);
  if (sender_->busy()) moved |= sender_->advance(LaneEnd::kSliceBytes);
  if (receiver_->busy()) moved |= receiver_->advance(LaneEnd::kSliceBytes);
  moved |= failLanes();
  moved |= advance(sends_, true);
  moved |= advance(receives_, false);
  // A lane may have found it out by itself.
  for (const LaneEnd* lane :
       {static_cast<LaneEnd*>(sender_.get()), static_cast<LaneEnd*>(receiver_.get())})
    if (lane->failing()) fail(lane->health(), /*tellPeer=*/false);
  if (!failed_.load(std::memory_order_acquire)) return moved;
  moved |= failLanes();
  const Status why = health();
  for (Flow* flow : {&sends_, &receives_})
    if (failAll(*flow, why)) moved |= advance(*flow, flow == &sends_);
  return moved;
}

bool StagedLane::failLanes() {
  if (!failed_.load(std::memory_order_acquire) || std::exchange(areLanesFailed_, true))
    return false;
  failedAt_ = Progress::Clock::now();
  const Status why = health();
  sender_->fail(why);
  receiver_->fail(why);
  return true;
}

bool StagedLane::advance(Flow& flow, bool isSend) {
  bool moved = false;
  for (;;) {
    bool again = lookAtWire(flow);
    again |= giveRoom(flow, isSend);
    again |= putOnWire(flow, isSend);
    if (!again) break;
    moved = true;
  }
  return dropOver(flow) || moved;
}

// Where the part of the ring begins that is in use; `otherwise` where none is.
uint64_t StagedLane::usedFrom(Flow& flow, uint64_t otherwise) {
  Place& used = flow.used;
  if (used.number < flow.first) used = {flow.first, 0};
  while (used.number < flow.room.number || used.item < flow.room.item) {
    const StagedMessage& message = flow.at(used.number);
    if (used.item == message.chunks.size()) {
      used = {used.number + 1, 0};
      continue;
    }
    if (!message.chunks[used.item].isDone) return message.chunks[used.item].position;
    ++used.item;
  }
  return otherwise;
}

bool StagedLane::giveRoom(Flow& flow, bool isSend) {
  bool moved = false;
  while (flow.room.number < flow.end()) {
    StagedMessage& message = flow.at(flow.room.number);
    if (flow.room.item == message.chunks.size()) {
      flow.room = {flow.room.number + 1, 0};
      continue;
    }
    StagedMessage::Chunk& chunk = message.chunks[flow.room.item];
    if (message.failed()) {
      chunk.mayCopy = chunk.isDone = true;  // the stream leaves it out
    } else {
      if (!ringOf(isSend).fits(chunk.position, chunk.bytes, usedFrom(flow, chunk.position)))
        return moved;
      chunk.hasRoom = true;
      chunk.mayCopy = isSend;
    }
    ++flow.room.item;
    moved = true;
  }
  return moved;
}

std::shared_ptr<MessageBatch> StagedLane::transmit(LaneEnd& lane, const MessageItem& item,
                                                   uint64_t count) {
  auto batch = std::make_shared<MessageBatch>(nullptr, env_.peer->progress(), partMetrics_);
  for (uint64_t i = 0; i < count; ++i) batch->add(item);
  lane.post(batch, 0, count);
  return batch;
}

bool StagedLane::putOnWire(Flow& flow, bool isSend) {
  bool moved = false;
  while (flow.wire.number < flow.end()) {
    // Messages that have no lane any more end without it.
    if (sender_->failing() || receiver_->failing()) {
      flow.wire = {flow.end(), 0};
      return moved;
    }
    StagedMessage& message = flow.at(flow.wire.number);
    const size_t item = flow.wire.item;
    if (!(isSend ? send(message, item) : receive(message, item))) return moved;
    moved = true;
    if (item == message.chunks.size() || message.rest)
      flow.wire = {flow.wire.number + 1, 0};
    else
      ++flow.wire.item;
  }
  return moved;
}

// False: not yet.
bool StagedLane::send(StagedMessage& message, size_t item) {
  if (item == 0) {
    message.headerWire = transmit(
        *sender_,
        {.address = reinterpret_cast<std::byte*>(&message.header), .bytes = sizeof(StagedHeader)});
    return true;
  }
  // The receiver has counted on them.
  if (message.failed()) {
    message.rest = transmit(*sender_, {}, message.chunks.size() + 1 - item);
    return true;
  }
  StagedMessage::Chunk& chunk = message.chunks[item - 1];
  if (!chunk.mayCopy || !message.passed(chunk)) return false;
  MessageItem piece{.address = placeOf(message, chunk), .bytes = chunk.bytes};
  if (chunk.bytes > ChunkCut::kInboxBytes) {
    piece.region = ring_.get();
    piece.kind = MessageKind::kGet;
  }
  chunk.wire = transmit(*sender_, piece);
  return true;
}

bool StagedLane::receive(StagedMessage& message, size_t item) {
  if (item == 0) {
    message.headerWire = transmit(
        *receiver_,
        {.address = reinterpret_cast<std::byte*>(&message.header), .bytes = sizeof(StagedHeader)});
    return true;
  }
  if (!message.hasHeader) return false;
  // The sender has cut the message into chunks already. They meet receives that no chunk fits,
  // which tells the sender that the message has failed.
  if (message.failed()) {
    const MessageItem none{.bytes = message.header.chunkBytes + 1};
    message.rest = transmit(*receiver_, none,
                            ChunkCut::countOf(message.header.bytes, message.header.chunkBytes));
    return true;
  }
  StagedMessage::Chunk& chunk = message.chunks[item - 1];
  if (!chunk.hasRoom) return false;
  chunk.wire = transmit(*receiver_, {.address = placeOf(message, chunk), .bytes = chunk.bytes});
  return true;
}

// Copied before it is looked at: the header has come through the inbox.
bool StagedLane::takeHeader(StagedMessage& message) {
  const StagedHeader& header = message.header;
  const ChunkCut theirs = ChunkCut::of(header.bytes, ringBytes_);
  if (header.number != message.number || header.chunkBytes != theirs.chunkBytes ||
      theirs.chunks > kMostChunks) {
    fail(Status(Code::kCorrupt,
                "rank " + std::to_string(rank()) + " announced a staged message that cannot be"),
         /*tellPeer=*/true);
    return false;
  }
  // The later messages would meet others than those they are for, and some may have.
  if (header.part != message.part) {
    fail(Status(Code::kSizeMismatch, nameOfMessage(message) + " belongs to a message of " +
                                         std::to_string(message.part.pieces()) +
                                         " pieces, and the one that was sent has " +
                                         std::to_string(header.part.pieces())),
         /*tellPeer=*/true);
    return false;
  }
  message.hasHeader = true;
  if (header.bytes != message.bytes)
    endMessage(message,
               Status(Code::kSizeMismatch,
                      nameOfMessage(message) + " has room for " + std::to_string(message.bytes) +
                          " bytes, the message has " + std::to_string(header.bytes)));
  return true;
}

void StagedLane::endMessage(StagedMessage& message, const Status& why) {
  if (message.failed()) return;
  message.outcome = why;
  if (message.abort != nullptr) abortWaits(*message.abort, &env_.peer->metrics().poisonings());
  for (StagedMessage::Chunk& chunk : message.chunks) chunk.mayCopy |= chunk.hasRoom;
}

bool StagedLane::lookAtChunk(StagedMessage& message, StagedMessage::Chunk& chunk) {
  bool moved = false;
  if (chunk.wire && chunk.wire->done()) {
    const Status status = chunk.wire->status();
    chunk.wire.reset();
    moved = true;
    if (status.isOk()) {
      chunk.arrived = true;
      chunk.mayCopy = true;
    } else if (message.isSend && status.code() == Code::kSizeMismatch) {
      endMessage(message, Status(Code::kSizeMismatch,
                                 nameOfMessage(message) + " has " + std::to_string(message.bytes) +
                                     " bytes, and its receive another number"));
    } else {
      fail(status.withContext(nameOfMessage(message)), /*tellPeer=*/true);
    }
  }
  if (chunk.isDone || !chunk.hasRoom || chunk.wire) return moved;
  const bool isIdle = message.isSend ? chunk.arrived || message.failed() : chunk.mayCopy;
  if (!isIdle || !message.passed(chunk)) return moved;
  chunk.isDone = true;
  return true;
}

bool StagedLane::lookAtWire(Flow& flow) {
  bool moved = false;
  // Nothing of the messages after `last` is under way.
  const uint64_t last = std::max(flow.room.number, flow.wire.number);
  for (uint64_t number = flow.first; number < flow.end() && number <= last; ++number) {
    StagedMessage& message = flow.at(number);
    if (message.isOver) continue;
    if (message.headerWire && message.headerWire->done()) {
      const Status status = message.headerWire->status();
      message.headerWire.reset();
      moved = true;
      if (!status.isOk())
        fail(status.withContext(nameOfMessage(message)), /*tellPeer=*/true);
      else if (!message.isSend)
        (void)takeHeader(message);
    }
    if (message.rest && message.rest->done()) {
      message.rest.reset();
      moved = true;
    }
    for (StagedMessage::Chunk& chunk : message.chunks)
      if (!chunk.isDone || chunk.wire) moved |= lookAtChunk(message, chunk);
  }
  return moved;
}

bool StagedLane::dropOver(Flow& flow) {
  bool moved = false;
  for (size_t i = 0; i < flow.messages.size(); ++i) {
    StagedMessage& message = *flow.messages[i];
    const bool isOver =
        flow.wire.number > flow.first + i && !message.headerWire && !message.rest &&
        std::all_of(message.chunks.begin(), message.chunks.end(),
                    [](const StagedMessage::Chunk& chunk) { return chunk.isDone && !chunk.wire; });
    if (message.isOver || !isOver) continue;
    message.isOver = true;
    pending_.fetch_sub(1, std::memory_order_acq_rel);
    moved = true;
  }
  while (!flow.messages.empty() && flow.messages.front()->isOver && flow.room.number > flow.first) {
    flow.messages.pop_front();
    ++flow.first;
  }
  return moved;
}

bool StagedLane::isReceived(const StagedMessage& message, bool orOnTheWire) {
  return std::all_of(message.chunks.begin(), message.chunks.end(),
                     [&](const StagedMessage::Chunk& chunk) {
                       return chunk.arrived || (orOnTheWire && chunk.wire);
                     });
}

// Chunks that were received stay received.
bool StagedLane::failAll(Flow& flow, const Status& why) {
  bool moved = false;
  const bool isSoon = Progress::Clock::now() < failedAt_ + kGrace;
  for (const auto& message : flow.messages) {
    if (message->failed() || isReceived(*message, /*orOnTheWire=*/isSoon)) continue;
    endMessage(*message, why);
    moved = true;
  }
  return moved;
}

}  // namespace peerlane
