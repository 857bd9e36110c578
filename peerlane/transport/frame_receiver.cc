// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/frame_receiver.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string>

#include "peerlane/core/log.h"
#include "peerlane/program/words/word.h"

namespace peerlane {

Status FrameReceiver::pump(FramePipe& pipe, size_t budget, FrameEffects& effects, size_t& moved) {
  moved = 0;
  for (;;) {
    PEERLANE_RETURN_IF_ERROR(useBuffered(effects));
    if ((moved >= budget && !pipe.hasUnread()) || !pipe.readable()) return {};
    PEERLANE_ASSIGN(const size_t bytes, readMore(pipe, effects));
    if (bytes == 0) return {};
    moved += bytes;
  }
}

// Afterwards the buffer holds less than a header, a table or a trailer, and nothing while a payload
// goes on.
Status FrameReceiver::useBuffered(FrameEffects& effects) {
  for (;;) {
    if (inTable_) {
      if (buffered() < frame_.value * kFrameBlockBytes) return {};
      PEERLANE_RETURN_IF_ERROR(endTable(effects));
    }
    if (inPayload_) {
      const size_t bytes = std::min<size_t>(payloadLeft_, buffered());
      if (!places_.fill(std::span(buffer_).subspan(begin_, bytes))) dropPlaces(effects);
      begin_ += bytes;
      payloadLeft_ -= static_cast<uint32_t>(bytes);
      if (payloadLeft_ != 0 || (frame_.trailer && buffered() < kFrameTrailerBytes)) return {};
      if (frame_.trailer) PEERLANE_RETURN_IF_ERROR(endTrailer());
      PEERLANE_RETURN_IF_ERROR(endPayload(effects));
    }
    if (buffered() < kFrameHeaderBytes) return {};
    const std::span<const std::byte, kFrameHeaderBytes> header(buffer_.data() + begin_,
                                                               kFrameHeaderBytes);
    PEERLANE_ASSIGN(const Frame frame, parseFrame(header));
    begin_ += kFrameHeaderBytes;
    PEERLANE_RETURN_IF_ERROR(beginFrame(frame, effects));
  }
}

// How much may come into the buffer with the next read. Data that was asked for, and is long, is
// not to come there, from where the system would have to copy it on.
size_t FrameReceiver::aheadBytes() {
  const size_t room = buffer_.size() - end_;
  if (inPayload_ || inTable_) return room;
  const MutexLock lock(lock_);
  if (sender_.bytesToCome() < kLeastAlone) return room;
  return std::min(room, kFrameHeaderBytes - buffered());
}

// The rest of a payload goes to its place directly, the bytes after it into the buffer.
Result<size_t> FrameReceiver::readMore(FramePipe& pipe, FrameEffects& effects) {
  std::memmove(buffer_.data(), buffer_.data() + begin_, buffered());
  end_ -= begin_;
  begin_ = 0;
  std::array<IoSlice, kFrameMaxBlocks + 1> slices;
  const std::span<const IoSlice> places = places_.slices();
  auto last = std::copy(places.begin(), places.end(), slices.begin());
  const IoSlice rest{buffer_.data() + end_, aheadBytes()};
  *last++ = rest;
  size_t direct = places.empty() ? 0 : payloadLeft_;
  Result<size_t> read = pipe.read(
      {std::span(slices.begin(), last), std::span(buffer_), /*areAllOurs=*/places_.areOurs()});
  if (read.status().code() == Code::kRevoked && !places.empty()) {
    dropPlaces(effects);
    direct = 0;
    read = pipe.read({std::span(&rest, 1), std::span(buffer_)});
  }
  if (!read) return read;
  const size_t placed = std::min(*read, direct);
  places_.advance(placed);
  payloadLeft_ -= static_cast<uint32_t>(placed);
  end_ += *read - placed;
  return read;
}

// Their memory cannot be written: the rest of the payload is dropped, and what it belongs to fails.
void FrameReceiver::dropPlaces(FrameEffects& effects) {
  places_.clear();
  if (logEnabled(LogLevel::kInfo))
    effects.refused.push_back(
        std::string(frameKindName(frame_.kind)) +
        " frame refused: the memory it is for was unmapped, protected or cut");
  spoil(Code::kRevoked);
}

void FrameReceiver::spoil(Code code) {
  if (frame_.kind == FrameKind::kGetData) {
    const MutexLock lock(lock_);
    sender_.spoilRequest(frame_.sequence, code);
  } else if (entryCode_ == Code::kOk) {
    entryCode_ = toldAs(code);
  }
}

Code FrameReceiver::toldAs(Code code) const {
  return code == Code::kRevoked && !peerKnows_.revoked ? Code::kClosed : code;
}

Status FrameReceiver::endTrailer() {
  const auto bytes = std::span<const std::byte>(buffer_).subspan(begin_, kFrameTrailerBytes);
  begin_ += kFrameTrailerBytes;
  PEERLANE_ASSIGN(const Code code, parseTrailer(bytes.first<kFrameTrailerBytes>()));
  if (code != Code::kOk) spoil(code);
  return {};
}

Status FrameReceiver::beginFrame(const Frame& frame, FrameEffects& effects) {
  switch (frame.kind) {
    case FrameKind::kPut:
    case FrameKind::kPutList: return beginPut(frame, effects);
    case FrameKind::kStore32:
    case FrameKind::kStore64:
    case FrameKind::kAdd64: return performWord(frame, effects);
    case FrameKind::kFlush: PEERLANE_RETURN_IF_ERROR(beginEntry(frame)); return endEntry();
    case FrameKind::kGetRequest:
    case FrameKind::kGetList: return beginRequest(frame, effects);
    case FrameKind::kGetCancel: return cancelRequests(frame);
    case FrameKind::kAck: {
      const MutexLock lock(lock_);
      return sender_.answered(frame.sequence, static_cast<Code>(frame.value), effects);
    }
    case FrameKind::kGetRefused: {
      const MutexLock lock(lock_);
      return sender_.requestEnded(frame.sequence, static_cast<Code>(frame.value), effects);
    }
    case FrameKind::kGetData: {
      const MutexLock lock(lock_);
      beginPayload(frame);
      return sender_.destination(frame, places_);
    }
  }
  return Status(Code::kInternal, "frame kind that the format accepts and the receiver does not");
}

// Entries are numbered without gaps, and one is finished before the next begins.
Status FrameReceiver::beginEntry(const Frame& frame) {
  const bool isPut = frame.kind == FrameKind::kPut || frame.kind == FrameKind::kPutList;
  if (entryOpen_ && isPut && frame.sequence == entry_) return {};
  if (entryOpen_ || frame.sequence != entry_ + 1)
    return Status(Code::kCorrupt, std::string(frameKindName(frame.kind)) + " frame of entry " +
                                      std::to_string(frame.sequence) + "; expected " +
                                      std::to_string(entryOpen_ ? entry_ : entry_ + 1) +
                                      (entryOpen_ ? ", a put that goes on" : ""));
  entry_ = frame.sequence;
  entryCode_ = Code::kOk;
  entryOpen_ = true;
  return {};
}

Status FrameReceiver::endEntry() {
  entryOpen_ = false;
  while (!refused_.empty() && refused_.front().first + kFrameMostAfter < entry_)
    refused_.pop_front();
  if (entryCode_ != Code::kOk) refused_.emplace_back(entry_, entryCode_);
  const MutexLock lock(lock_);
  return sender_.acknowledge(entry_, entryCode_);
}

Status FrameReceiver::beginPut(const Frame& frame, FrameEffects& effects) {
  PEERLANE_RETURN_IF_ERROR(beginEntry(frame));
  pinned_ = false;
  if (frame.payload == 0) return endEntry();
  beginPayload(frame);
  if (!inTable_) beginBlocks(std::array{FrameBlock{frame.offset, frame.payload}}, effects);
  return {};
}

void FrameReceiver::beginPayload(const Frame& frame) {
  frame_ = frame;
  inPayload_ = true;
  inTable_ = frame.kind == FrameKind::kPutList || frame.kind == FrameKind::kGetList;
  payloadLeft_ = frame.payload;
  places_.clear();
}

// The table of a list is there.
Status FrameReceiver::endTable(FrameEffects& effects) {
  const size_t tableBytes = frame_.value * kFrameBlockBytes;
  std::array<FrameBlock, kFrameMaxBlocks> room;
  PEERLANE_RETURN_IF_ERROR(
      parseBlocks(frame_, std::span(buffer_).subspan(begin_, tableBytes), room));
  begin_ += tableBytes;
  payloadLeft_ -= static_cast<uint32_t>(tableBytes);
  inTable_ = false;
  const std::span<const FrameBlock> blocks = std::span(room).first(frame_.value);
  if (frame_.kind == FrameKind::kGetList) return serveRequest(frame_, blocks, effects);
  beginBlocks(blocks, effects);
  return {};
}

// After a refusal the rest of the entry is read and dropped.
void FrameReceiver::beginBlocks(std::span<const FrameBlock> blocks, FrameEffects& effects) {
  if (entryCode_ != Code::kOk) return;
  Result<PinnedMemory> region = pin(frame_, blocks, Access::kRemoteWrite, effects);
  if (!region) {
    entryCode_ = region.status().code();
    return;
  }
  pinned_ = true;
  for (const FrameBlock& block : blocks) places_.add(region->at + block.offset, block.bytes);
  if (region->isOurs) places_.setOurs();
}

Status FrameReceiver::endPayload(FrameEffects& effects) {
  inPayload_ = false;
  places_.clear();
  if (frame_.kind == FrameKind::kGetList) return {};
  if (frame_.kind == FrameKind::kGetData) {
    if (!frame_.last) return {};
    const MutexLock lock(lock_);
    return sender_.requestEnded(frame_.sequence, Code::kOk, effects);
  }
  if (pinned_) {
    regions_.unpin(frame_.allocation);
    pinned_ = false;
  }
  return frame_.last ? endEntry() : Status::ok();
}

Status FrameReceiver::performWord(const Frame& frame, FrameEffects& effects) {
  PEERLANE_RETURN_IF_ERROR(beginEntry(frame));
  const Width width = frame.kind == FrameKind::kStore32 ? Width::k32 : Width::k64;
  const auto bytes = static_cast<uint64_t>(width);
  // It would announce bytes that never came.
  const auto isBefore = [&](const auto& refused) {
    return refused.first + frame.after == frame.sequence;
  };
  if (const auto before = std::find_if(refused_.begin(), refused_.end(), isBefore);
      frame.after != 0 && before != refused_.end()) {
    entryCode_ = before->second;
    return endEntry();
  }
  const Result<PinnedMemory> pinned = pin(frame, bytes, Access::kRemoteWrite, effects);
  if (!pinned) {
    entryCode_ = pinned.status().code();
    return endEntry();
  }
  std::byte* const at = pinned->at;
  if (reinterpret_cast<uintptr_t>(at) % bytes != 0) {
    entryCode_ = Code::kInvalidArgument;
  } else if (!pinned->isOurs) {
    // No call of the system stores a word at once, and a plain store would end the process where
    // the memory is gone. Words of this library lie in memory of its own.
    entryCode_ = Code::kNotSupported;
  } else if (frame.kind == FrameKind::kAdd64) {
    addWord(at, frame.value);
  } else {
    // Release: a thread of any process that reads the word by an acquiring load also sees the
    // writes of earlier frames. Sequentially consistent for the wake rule.
    storeWord(at, width, frame.value, std::memory_order_seq_cst);
  }
  regions_.unpin(frame.allocation);
  effects.stored = true;
  return endEntry();
}

Status FrameReceiver::beginRequest(const Frame& frame, FrameEffects& effects) {
  if (frame.sequence != request_ + 1)
    return Status(Code::kCorrupt, "get request " + std::to_string(frame.sequence) + "; expected " +
                                      std::to_string(request_ + 1));
  request_ = frame.sequence;
  if (frame.kind == FrameKind::kGetList) {
    beginPayload(frame);
    return {};
  }
  return serveRequest(frame, std::array{FrameBlock{frame.offset, frame.value}}, effects);
}

Status FrameReceiver::serveRequest(const Frame& frame, std::span<const FrameBlock> blocks,
                                   FrameEffects& effects) {
  GetReply reply{.request = frame.sequence, .allocation = frame.allocation};
  Result<PinnedMemory> region = pin(frame, blocks, Access::kRemoteRead, effects);
  if (region) {
    reply.block = {region->at + blocks.front().offset, blocks.front().bytes};
    for (const FrameBlock& block : blocks.subspan(1))
      reply.later.push_back({region->at + block.offset, block.bytes});
    for (const FrameBlock& block : blocks) reply.bytes += block.bytes;
  } else {
    reply.refusal = region.status().code();
  }
  Status taken;
  {
    const MutexLock lock(lock_);
    taken = sender_.replies().add(std::move(reply));
  }
  if (!taken && region) regions_.unpin(frame.allocation);
  return taken;
}

// Requests of the range that were already answered are not found, and are skipped.
Status FrameReceiver::cancelRequests(const Frame& frame) {
  if (frame.sequence > request_)
    return Status(Code::kCorrupt, "cancel of get request " + std::to_string(frame.sequence) +
                                      "; the last one was " + std::to_string(request_));
  const MutexLock lock(lock_);
  sender_.replies().drop(frame.value, frame.sequence);
  return {};
}

Result<PinnedMemory> FrameReceiver::pin(const Frame& frame, uint64_t bytes, Access wanted,
                                        FrameEffects& effects) {
  Result<PinnedMemory> at = Status(Code::kInvalidArgument, "offset and length wrap around");
  if (bytes <= std::numeric_limits<uint64_t>::max() - frame.offset)
    at = regions_.pin(frame.allocation, frame.generation, frame.offset, bytes, wanted);
  if (!at && logEnabled(LogLevel::kInfo))
    effects.refused.push_back(std::string(frameKindName(frame.kind)) +
                              " frame refused: " + std::string(at.status().message()));
  if (at) return at;
  return Status(toldAs(at.status().code()), std::string(at.status().message()));
}

// All blocks lie in one region, so one pin holds them: from the first byte of any to the last. The
// result has the address that offset 0 would have.
Result<PinnedMemory> FrameReceiver::pin(const Frame& frame, std::span<const FrameBlock> blocks,
                                        Access wanted, FrameEffects& effects) {
  Frame whole = frame;
  whole.offset = blocks.front().offset;
  uint64_t end = 0;
  bool wraps = false;
  for (const FrameBlock& block : blocks) {
    whole.offset = std::min(whole.offset, block.offset);
    wraps |= block.bytes > std::numeric_limits<uint64_t>::max() - block.offset;
    end = std::max(end, block.offset + block.bytes);
  }
  // More than any region has.
  const uint64_t bytes = wraps ? std::numeric_limits<uint64_t>::max() : end - whole.offset;
  PEERLANE_ASSIGN(PinnedMemory pinned, pin(whole, bytes, wanted, effects));
  pinned.at -= whole.offset;
  return pinned;
}

// Under one lock: a get that is abandoned in between would end while its payload is still taken.
void FrameReceiver::letGo(FrameEffects& effects) {
  const MutexLock lock(lock_);
  if (inPayload_ && frame_.kind == FrameKind::kGetData && sender_.isAbandoned(frame_.sequence))
    places_.clear();
  sender_.endAbandonedGets(effects);
}

void FrameReceiver::reset(FrameEffects& effects) {
  if (pinned_) effects.unpinned.push_back(frame_.allocation);
  pinned_ = false;
  inPayload_ = inTable_ = false;
  places_.clear();
  begin_ = end_ = 0;
}

}  // namespace peerlane
