// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/frame_receiver.h"

#include <algorithm>
#include <cstring>
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
    if (moved >= budget || !pipe.readable()) return {};
    PEERLANE_ASSIGN(const size_t bytes, readMore(pipe));
    if (bytes == 0) return {};
    moved += bytes;
  }
}

// Afterwards the buffer holds less than a header, and nothing while a payload goes on.
Status FrameReceiver::useBuffered(FrameEffects& effects) {
  for (;;) {
    if (inPayload_) {
      const size_t bytes = std::min<size_t>(payloadLeft_, buffered());
      if (to_ != nullptr && bytes != 0) {
        std::memcpy(to_, buffer_.data() + begin_, bytes);
        to_ += bytes;
      }
      begin_ += bytes;
      payloadLeft_ -= static_cast<uint32_t>(bytes);
      if (payloadLeft_ != 0) return {};
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

// The rest of a payload goes to its place directly, the bytes after it into the buffer.
Result<size_t> FrameReceiver::readMore(FramePipe& pipe) {
  std::memmove(buffer_.data(), buffer_.data() + begin_, buffered());
  end_ -= begin_;
  begin_ = 0;
  std::array<IoSlice, 2> slices;
  size_t count = 0;
  const size_t direct = inPayload_ && to_ != nullptr ? payloadLeft_ : 0;
  if (direct != 0) slices[count++] = {to_, direct};
  slices[count++] = {buffer_.data() + end_, buffer_.size() - end_};
  Result<size_t> read = pipe.read(std::span(slices.data(), count));
  if (!read) return read;
  const size_t placed = std::min(*read, direct);
  if (placed != 0) {
    to_ += placed;
    payloadLeft_ -= static_cast<uint32_t>(placed);
  }
  end_ += *read - placed;
  return read;
}

Status FrameReceiver::beginFrame(const Frame& frame, FrameEffects& effects) {
  switch (frame.kind) {
    case FrameKind::kPut: return beginPut(frame, effects);
    case FrameKind::kStore32:
    case FrameKind::kStore64:
    case FrameKind::kAdd64: return performWord(frame, effects);
    case FrameKind::kFlush: PEERLANE_RETURN_IF_ERROR(beginEntry(frame)); return endEntry();
    case FrameKind::kGetRequest: return serveRequest(frame, effects);
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
      PEERLANE_ASSIGN(to_, sender_.destination(frame));
      frame_ = frame;
      inPayload_ = true;
      payloadLeft_ = frame.payload;
      return {};
    }
  }
  return Status(Code::kInternal, "frame kind that the format accepts and the receiver does not");
}

// Entries are numbered without gaps, and one is finished before the next begins.
Status FrameReceiver::beginEntry(const Frame& frame) {
  if (entryOpen_ && frame.kind == FrameKind::kPut && frame.sequence == entry_) return {};
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
  const MutexLock lock(lock_);
  return sender_.acknowledge(entry_, entryCode_);
}

Status FrameReceiver::beginPut(const Frame& frame, FrameEffects& effects) {
  PEERLANE_RETURN_IF_ERROR(beginEntry(frame));
  to_ = nullptr;
  pinned_ = false;
  if (frame.payload == 0) return endEntry();
  // After a refusal the rest of the entry is read and dropped.
  if (entryCode_ == Code::kOk) {
    if (Result<std::byte*> at = pin(frame, frame.payload, Access::kRemoteWrite, effects)) {
      to_ = *at;
      pinned_ = true;
    } else {
      entryCode_ = at.status().code();
    }
  }
  frame_ = frame;
  inPayload_ = true;
  payloadLeft_ = frame.payload;
  return {};
}

Status FrameReceiver::endPayload(FrameEffects& effects) {
  inPayload_ = false;
  to_ = nullptr;
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
  Result<std::byte*> at = pin(frame, bytes, Access::kRemoteWrite, effects);
  if (!at) {
    entryCode_ = at.status().code();
    return endEntry();
  }
  if (reinterpret_cast<uintptr_t>(*at) % bytes != 0) {
    entryCode_ = Code::kInvalidArgument;
  } else if (frame.kind == FrameKind::kAdd64) {
    addWord(*at, frame.value);
  } else {
    // Release: a thread of any process that reads the word by an acquiring load also sees the
    // writes of earlier frames. Sequentially consistent for the wake rule.
    storeWord(*at, width, frame.value, std::memory_order_seq_cst);
  }
  regions_.unpin(frame.allocation);
  effects.wake = true;  // threads that wait for the word poll this memory
  return endEntry();
}

Status FrameReceiver::serveRequest(const Frame& frame, FrameEffects& effects) {
  if (frame.sequence != request_ + 1)
    return Status(Code::kCorrupt, "get request " + std::to_string(frame.sequence) + "; expected " +
                                      std::to_string(request_ + 1));
  request_ = frame.sequence;
  GetReply reply{.request = frame.sequence, .allocation = frame.allocation, .bytes = frame.value};
  Result<std::byte*> at = pin(frame, frame.value, Access::kRemoteRead, effects);
  if (at)
    reply.from = *at;
  else
    reply.refusal = at.status().code();
  Status taken;
  {
    const MutexLock lock(lock_);
    taken = sender_.reply(reply);
  }
  if (!taken && at) regions_.unpin(frame.allocation);
  return taken;
}

// Requests of the range that were already answered are not found, and are skipped.
Status FrameReceiver::cancelRequests(const Frame& frame) {
  if (frame.sequence > request_)
    return Status(Code::kCorrupt, "cancel of get request " + std::to_string(frame.sequence) +
                                      "; the last one was " + std::to_string(request_));
  const MutexLock lock(lock_);
  sender_.dropReplies(frame.value, frame.sequence);
  return {};
}

Result<std::byte*> FrameReceiver::pin(const Frame& frame, uint64_t bytes, Access wanted,
                                      FrameEffects& effects) {
  Result<std::byte*> at = Status(Code::kInvalidArgument, "offset and length wrap around");
  if (bytes <= std::numeric_limits<uint64_t>::max() - frame.offset)
    at = regions_.pin(frame.allocation, frame.generation, frame.offset, bytes, wanted);
  if (!at && logEnabled(LogLevel::kInfo))
    effects.refused.push_back(std::string(frameKindName(frame.kind)) +
                              " frame refused: " + std::string(at.status().message()));
  return at;
}

// Under one lock: a get that is abandoned in between would end while its payload is still taken.
void FrameReceiver::letGo(FrameEffects& effects) {
  const MutexLock lock(lock_);
  if (inPayload_ && frame_.kind == FrameKind::kGetData && sender_.isAbandoned(frame_.sequence))
    to_ = nullptr;
  sender_.endAbandonedGets(effects);
}

void FrameReceiver::reset(FrameEffects& effects) {
  if (pinned_) effects.unpinned.push_back(frame_.allocation);
  pinned_ = false;
  inPayload_ = false;
  to_ = nullptr;
  begin_ = end_ = 0;
}

}  // namespace peerlane
