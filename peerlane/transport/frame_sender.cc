// SPDX-License-Identifier: Apache-2.0
//
// A work's `scratch` here: [0] is its entry number, or for a get the parts that have not ended (one
// per request, and one while it is still being cut); [1] is a get's first failure.
#include "peerlane/transport/frame_sender.h"

#include <algorithm>
#include <string>
#include <utility>

namespace peerlane {
namespace {

// Moves past pieces that are done or empty. Returns the piece that goes on, null at the end.
const Piece* nextPiece(AgentWork& work) {
  const MailboxEntry& entry = *work.entry;
  while (work.piece < entry.pieceCount && work.offset >= entry.pieces[work.piece].bytes) {
    ++work.piece;
    work.offset = 0;
  }
  return work.piece < entry.pieceCount ? &entry.pieces[work.piece] : nullptr;
}

Frame placeFrame(FrameKind kind, const RemoteMemory& memory, uint64_t offset) {
  Frame frame;
  frame.kind = kind;
  frame.allocation = memory.grant.allocation;
  frame.generation = memory.grant.generation;
  frame.offset = offset;
  return frame;
}

}  // namespace

bool FrameSender::mayBegin(const AgentWork& work) {
  const bool overtakes = work.entry->verb != Verb::kGet && gets_.count(work.mailbox) != 0;
  const bool may = current_ == nullptr && !overtakes && entries_.size() < kFrameMaxEntries &&
                   !requests_.isFull();
  if (!may) refused_ = true;
  return may;
}

void FrameSender::begin(AgentWork& work) {
  work.piece = 0;
  work.offset = 0;
  work.scratch = {};
  if (work.entry->verb == Verb::kGet) {
    work.scratch[0] = 1;
    ++gets_[work.mailbox];
  } else {
    work.scratch[0] = nextEntry_++;
  }
  current_ = &work;
}

void FrameSender::abandon(AgentWork& work, Code code, FrameEffects& effects) {
  if (work.entry->verb == Verb::kGet) return abandonGet(work, code, effects);
  if (current_ != &work || abandoned_ != Code::kOk) return;
  abandoned_ = code;
  effects.wake = true;
}

void FrameSender::abandonGet(AgentWork& work, Code code, FrameEffects& effects) {
  if (const auto range = requests_.abandon(work, code)) {
    cancels_.push_back(*range);
    effects.wake = true;
  }
  if (current_ != &work) return;
  current_ = nullptr;
  noteRoom(effects);
  getPartEnded(work, code, effects);
}

void FrameSender::endAbandonedGets(FrameEffects& effects) {
  requests_.letGo(
      [&](const FrameRequests::Part& part) { getPartEnded(*part.work, part.code, effects); });
}

Status FrameSender::acknowledge(uint64_t entry, Code code) {
  // A success says the same about every unanswered entry before it.
  if (code == Code::kOk && !acks_.empty() && acks_.back().code == Code::kOk) {
    acks_.back().entry = entry;
    return {};
  }
  if (acks_.size() >= kFrameMaxEntries)
    return Status(Code::kCorrupt, "entry " + std::to_string(entry) + " is one more than the " +
                                      std::to_string(kFrameMaxEntries) + " that may be open");
  acks_.push_back({entry, code});
  return {};
}

Status FrameSender::reply(const GetReply& reply) {
  if (replies_.size() + dropped_.size() >= kFrameMaxRequests)
    return Status(Code::kCorrupt, "get request " + std::to_string(reply.request) +
                                      " is one more than the " + std::to_string(kFrameMaxRequests) +
                                      " that may be open");
  replies_.push_back(reply);
  return {};
}

void FrameSender::dropReplies(uint64_t first, uint64_t last) {
  const auto isBefore = [](const GetReply& reply, uint64_t request) {
    return reply.request < request;
  };
  const auto from = std::lower_bound(replies_.begin(), replies_.end(), first, isBefore);
  const auto to = std::find_if(from, replies_.end(),
                               [last](const GetReply& reply) { return reply.request > last; });
  dropped_.insert(dropped_.end(), from, to);
  replies_.erase(from, to);
}

Result<size_t> FrameSender::pump(FramePipe& pipe, size_t budget, FrameEffects& effects) {
  size_t moved = 0;
  while (moved < budget && pipe.writable()) {
    if (batch_.isWritten()) fill(effects);
    if (batch_.isWritten()) break;
    FrameBatch::Slices room;
    Result<size_t> written = pipe.write(batch_.slices(room));
    if (!written) return written.status();
    if (*written == 0) break;
    moved += *written;
    batch_.written(*written, effects.unpinned);
  }
  return moved;
}

void FrameSender::fill(FrameEffects& effects) {
  batch_.clear();
  while (!batch_.isFull() && batch_.payloadBytes() < kBatchBytes) {
    if (addAckFrame() || addCancelFrame()) continue;
    const bool added = replyNext_ ? addReplyFrame() || addWorkFrame(effects)
                                  : addWorkFrame(effects) || addReplyFrame();
    if (!added) break;
    replyNext_ = !replyNext_;
  }
}

bool FrameSender::addAckFrame() {
  if (acks_.empty()) return false;
  Frame frame;
  frame.kind = FrameKind::kAck;
  frame.sequence = acks_.front().entry;
  frame.value = static_cast<uint64_t>(acks_.front().code);
  acks_.pop_front();
  batch_.add(frame, nullptr);
  return true;
}

bool FrameSender::addCancelFrame() {
  if (cancels_.empty()) return false;
  Frame frame;
  frame.kind = FrameKind::kGetCancel;
  frame.sequence = cancels_.front().last;
  frame.value = cancels_.front().first;
  cancels_.pop_front();
  batch_.add(frame, nullptr);
  return true;
}

// The pin goes with this frame: those before it in the batch read the memory.
bool FrameSender::addRefusedFrame(const GetReply& reply, Code code) {
  Frame frame;
  frame.kind = FrameKind::kGetRefused;
  frame.sequence = reply.request;
  frame.value = static_cast<uint64_t>(code);
  batch_.add(frame, nullptr);
  if (reply.refusal == Code::kOk) batch_.unpinAfterLast(reply.allocation);
  return true;
}

bool FrameSender::addReplyFrame() {
  if (!dropped_.empty()) {
    const GetReply reply = dropped_.front();
    dropped_.pop_front();
    return addRefusedFrame(reply, reply.refusal != Code::kOk ? reply.refusal : Code::kCancelled);
  }
  if (replies_.empty()) return false;
  GetReply& reply = replies_.front();
  if (reply.refusal != Code::kOk) {
    const GetReply refused = reply;
    replies_.pop_front();
    return addRefusedFrame(refused, refused.refusal);
  }
  Frame frame;
  frame.sequence = reply.request;
  frame.kind = FrameKind::kGetData;
  frame.offset = reply.sent;
  frame.payload =
      static_cast<uint32_t>(std::min<uint64_t>(reply.bytes - reply.sent, kFrameMaxPayload));
  frame.last = reply.sent + frame.payload == reply.bytes;
  batch_.add(frame, reply.from + reply.sent);
  reply.sent += frame.payload;
  if (frame.last) {
    batch_.unpinAfterLast(reply.allocation);
    replies_.pop_front();
  }
  return true;
}

bool FrameSender::addWorkFrame(FrameEffects& effects) {
  if (current_ == nullptr) return false;
  AgentWork& work = *current_;
  if (abandoned_ != Code::kOk) {
    addEndFrame(work);
    noteRoom(effects);
    return true;
  }
  switch (work.entry->verb) {
    case Verb::kPut: addPutFrame(work); break;
    case Verb::kGet: return addRequestFrame(work, effects);
    case Verb::kStore:
    case Verb::kAdd64:
    case Verb::kFlush: addWordFrame(work); break;
  }
  // The answer of a put in pieces comes after its last frame only.
  if (current_ == nullptr) noteRoom(effects);
  return true;
}

void FrameSender::addPutFrame(AgentWork& work) {
  Frame frame;
  const std::byte* payload = nullptr;
  if (const Piece* piece = nextPiece(work)) {
    frame = placeFrame(FrameKind::kPut, *piece->remote, piece->remoteOffset + work.offset);
    payload = piece->local + work.offset;
    frame.payload =
        static_cast<uint32_t>(std::min<uint64_t>(piece->bytes - work.offset, kFrameMaxPayload));
    work.offset += frame.payload;
  }
  frame.kind = FrameKind::kPut;
  frame.sequence = work.scratch[0];
  frame.last = nextPiece(work) == nullptr;
  batch_.add(frame, payload);
  if (frame.last) entryCut(work);
}

// An empty put ends the entry; its number is taken, so the agent must send it in any case.
void FrameSender::addEndFrame(AgentWork& work) {
  Frame frame;
  frame.kind = FrameKind::kPut;
  frame.sequence = work.scratch[0];
  frame.last = true;
  batch_.add(frame, nullptr);
  entryCut(work);
}

void FrameSender::addWordFrame(AgentWork& work) {
  const MailboxEntry& entry = *work.entry;
  Frame frame;
  if (entry.verb != Verb::kFlush) {
    FrameKind kind = FrameKind::kAdd64;
    if (entry.verb == Verb::kStore)
      kind = entry.width == Width::k32 ? FrameKind::kStore32 : FrameKind::kStore64;
    frame = placeFrame(kind, *entry.remote, entry.remoteOffset);
    frame.value =
        kind == FrameKind::kStore32 ? static_cast<uint32_t>(entry.operand) : entry.operand;
  }
  frame.sequence = work.scratch[0];
  batch_.add(frame, nullptr);
  entryCut(work);
}

bool FrameSender::addRequestFrame(AgentWork& work, FrameEffects& effects) {
  const Piece* piece = nextPiece(work);
  if (piece != nullptr) {
    if (requests_.isFull()) return false;
    Frame frame = placeFrame(FrameKind::kGetRequest, *piece->remote, piece->remoteOffset);
    frame.sequence = requests_.add(work, piece->local, piece->bytes);
    frame.value = piece->bytes;
    ++work.scratch[0];
    work.offset = piece->bytes;
    batch_.add(frame, nullptr);
  }
  if (nextPiece(work) == nullptr) {
    current_ = nullptr;
    noteRoom(effects);
    getPartEnded(work, Code::kOk, effects);
  }
  return piece != nullptr;
}

void FrameSender::entryCut(AgentWork& work) {
  entries_.push_back({work.scratch[0], &work, std::exchange(abandoned_, Code::kOk)});
  current_ = nullptr;
}

Status FrameSender::answered(uint64_t entry, Code code, FrameEffects& effects) {
  while (!entries_.empty() && entries_.front().sequence <= entry) {
    const Entry front = entries_.front();
    entries_.pop_front();
    const bool named = front.sequence == entry;
    const Code answer = named ? code : Code::kOk;
    effects.finished.emplace_back(front.work,
                                  front.abandoned != Code::kOk ? front.abandoned : answer);
    if (named) {
      noteRoom(effects);
      return {};
    }
  }
  return Status(Code::kCorrupt,
                "ack of entry " + std::to_string(entry) + ", which waits for no answer");
}

Status FrameSender::requestEnded(uint64_t request, Code code, FrameEffects& effects) {
  PEERLANE_ASSIGN(const FrameRequests::Part part, requests_.end(request, code));
  noteRoom(effects);
  if (part.work != nullptr) getPartEnded(*part.work, part.code, effects);
  return {};
}

void FrameSender::getPartEnded(AgentWork& work, Code code, FrameEffects& effects) {
  if (code != Code::kOk && work.scratch[1] == 0) work.scratch[1] = static_cast<uint64_t>(code);
  if (--work.scratch[0] != 0) return;
  auto gets = gets_.find(work.mailbox);
  if (--gets->second == 0) gets_.erase(gets);
  effects.finished.emplace_back(&work, static_cast<Code>(work.scratch[1]));
  noteRoom(effects);
}

void FrameSender::noteRoom(FrameEffects& effects) {
  effects.wake |= refused_;
  refused_ = false;
}

void FrameSender::endAll(Code code, FrameEffects& effects) {
  for (const Entry& entry : entries_) effects.finished.emplace_back(entry.work, code);
  // A get has several requests but ends once; the one being cut is not yet among its requests, or
  // still counts itself.
  requests_.endAll([&](AgentWork& work) {
    if (&work != current_) effects.finished.emplace_back(&work, code);
  });
  if (current_ != nullptr) effects.finished.emplace_back(current_, code);
  batch_.abandon(effects.unpinned);
  for (const GetReply& reply : replies_)
    if (reply.refusal == Code::kOk) effects.unpinned.push_back(reply.allocation);
  for (const GetReply& reply : dropped_)
    if (reply.refusal == Code::kOk) effects.unpinned.push_back(reply.allocation);
  entries_.clear();
  replies_.clear();
  dropped_.clear();
  cancels_.clear();
  acks_.clear();
  gets_.clear();
  current_ = nullptr;
  abandoned_ = Code::kOk;
  effects.wake = true;
}

}  // namespace peerlane
