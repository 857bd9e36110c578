// SPDX-License-Identifier: Apache-2.0
//
// A work's `scratch` here: [0] is its entry number, or for a get the parts that have not ended (one
// per request, and one while it is still being cut); [1] is a get's first failure, or for a word
// Frame::after.
#include "peerlane/transport/frame_sender.h"

#include <algorithm>
#include <array>
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

bool isSameRegion(const RemoteMemory& one, const RemoteMemory& other) {
  return one.grant.allocation == other.grant.allocation &&
         one.grant.generation == other.grant.generation;
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
  const uint8_t after = tieOf(work).after;
  work.piece = 0;
  work.offset = 0;
  work.scratch = {0, after};
  if (work.entry->verb == Verb::kGet) {
    work.scratch[0] = 1;
    ++gets_[work.mailbox];
  } else {
    work.scratch[0] = nextEntry_++;
  }
  current_ = &work;
}

// The number of the previous entry stays in its work until that is complete.
FrameSender::Tie FrameSender::tieOf(const AgentWork& work) const {
  if (!work.entry->onlyAfterPrevious) return {};
  const AgentWork* const previous = work.mailbox->previous(work);
  if (previous == nullptr) return {.code = work.mailbox->code()};
  if (previous->scratch[0] == 0) return {.mustWait = true};  // not this agent's
  const uint64_t distance = nextEntry_ - previous->scratch[0];
  if (distance > kFrameMostAfter) return {.mustWait = true};
  return {.after = static_cast<uint8_t>(distance)};
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

Result<size_t> FrameSender::pump(FramePipe& pipe, size_t budget, FrameEffects& effects) {
  size_t moved = 0;
  if (!lent_.empty()) unpinReturned(pipe, effects);
  while (moved < budget && pipe.writable()) {
    fill(effects);
    if (batch_.isWritten() && !pipe.hasUnsent()) break;
    Result<size_t> written = pipe.write(batch_.slices());
    if (written.status().code() == Code::kRevoked) {
      PEERLANE_RETURN_IF_ERROR(spoil(effects));
      continue;
    }
    if (!written) return written.status();
    if (*written == 0) break;
    moved += *written;
    const size_t before = effects.unpinned.size();
    batch_.written(*written, effects.unpinned);
    if (effects.unpinned.size() != before) keepLent(pipe, before, effects);
  }
  if (!lent_.empty()) unpinReturned(pipe, effects);
  return moved;
}

// The pins that end with what was just written, the last ones in `unpinned`.
void FrameSender::keepLent(const FramePipe& pipe, size_t before, FrameEffects& effects) {
  if (pipe.lent() == 0) return;
  for (size_t i = before; i < effects.unpinned.size(); ++i)
    lent_.push_back({pipe.lent(), effects.unpinned[i]});
  effects.unpinned.resize(before);
}

void FrameSender::unpinReturned(FramePipe& pipe, FrameEffects& effects) {
  const uint64_t returned = pipe.returned();
  for (; !lent_.empty() && lent_.front().total <= returned; lent_.pop_front())
    effects.unpinned.push_back(lent_.front().allocation);
}

// The frame's length was told, so its bytes must come; no further one of its work is cut.
Status FrameSender::spoil(FrameEffects& effects) {
  const auto spoiled = batch_.spoil(Code::kRevoked);
  if (!spoiled)
    return Status(Code::kUnavailable,
                  "memory that was being sent was unmapped, protected or cut, and this peer's "
                  "version of Peerlane cannot be told of that");
  effects.refused.push_back(std::string(frameKindName(spoiled->kind)) + " " +
                            std::to_string(spoiled->sequence) +
                            ": the memory to be sent was unmapped, protected or cut");
  if (spoiled->kind == FrameKind::kGetData)
    replies_.spoil(spoiled->sequence, Code::kRevoked);
  else if (current_ != nullptr && current_->entry->verb == Verb::kPut &&
           current_->scratch[0] == spoiled->sequence)
    abandon(*current_, Code::kRevoked, effects);
  else
    for (Entry& entry : entries_)
      if (entry.sequence == spoiled->sequence) entry.abandoned = Code::kRevoked;
  return {};
}

bool FrameSender::cutWholly(FrameEffects& effects) {
  fill(effects);
  return current_ == nullptr;
}

// Adds to what was cut and not written yet.
void FrameSender::fill(FrameEffects& effects) {
  if (batch_.isWritten())
    batch_.clear();
  else if (!batch_.isUntouched())
    return;
  while (!batch_.isFull() && batch_.payloadBytes() < kBatchBytes) {
    if (addAckFrame() || addCancelFrame()) continue;
    const bool added = replyNext_ ? replies_.addFrame(batch_) || addWorkFrame(effects)
                                  : addWorkFrame(effects) || replies_.addFrame(batch_);
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
  batch_.add(frame);
  return true;
}

bool FrameSender::addCancelFrame() {
  if (cancels_.empty()) return false;
  Frame frame;
  frame.kind = FrameKind::kGetCancel;
  frame.sequence = cancels_.front().last;
  frame.value = cancels_.front().first;
  cancels_.pop_front();
  batch_.add(frame);
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

// As many blocks of one region as a frame takes; a single one needs no table.
void FrameSender::addPutFrame(AgentWork& work) {
  std::array<FrameBlock, kFrameMaxBlocks> blocks;
  std::array<IoSlice, kFrameMaxBlocks> payloads;
  size_t count = 0;
  uint64_t room = kFrameMaxPayload;
  const RemoteMemory* region = nullptr;
  while (const Piece* piece = nextPiece(work)) {
    if (count == kFrameMaxBlocks || room <= 2 * kFrameBlockBytes) break;
    if (region != nullptr && !isSameRegion(*region, *piece->remote)) break;
    region = piece->remote;
    // The rows for this block and, once there are several, for the first one.
    if (count != 0) room -= count == 1 ? 2 * kFrameBlockBytes : kFrameBlockBytes;
    const uint64_t bytes = std::min(piece->bytes - work.offset, room);
    payloads[count] = {piece->local + work.offset, bytes};
    blocks[count++] = {piece->remoteOffset + work.offset, bytes};
    work.offset += bytes;
    room -= bytes;
  }
  Frame frame;
  if (count != 0) frame = placeFrame(FrameKind::kPut, *region, count == 1 ? blocks[0].offset : 0);
  frame.kind = count > 1 ? FrameKind::kPutList : FrameKind::kPut;
  frame.payload = static_cast<uint32_t>(kFrameMaxPayload - room);
  frame.sequence = work.scratch[0];
  frame.last = nextPiece(work) == nullptr;
  frame.value = count > 1 ? count : 0;
  batch_.add(frame, std::span(blocks).first(frame.value), std::span(payloads).first(count),
             work.entry->isOurs);
  if (frame.last) entryCut(work);
}

// An empty put ends the entry; its number is taken, so the agent must send it in any case.
void FrameSender::addEndFrame(AgentWork& work) {
  Frame frame;
  frame.kind = FrameKind::kPut;
  frame.sequence = work.scratch[0];
  frame.last = true;
  batch_.add(frame);
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
    frame.after = static_cast<uint8_t>(work.scratch[1]);
  }
  frame.sequence = work.scratch[0];
  batch_.add(frame);
  entryCut(work);
}

// As many pieces of one region as a request takes. A long one is better asked for alone: the data
// of all come in order, and a cancelled request ends as a whole.
bool FrameSender::addRequestFrame(AgentWork& work, FrameEffects& effects) {
  const Piece* const first = nextPiece(work);
  if (first != nullptr) {
    if (requests_.isFull()) return false;
    std::array<FrameBlock, kFrameMaxBlocks> blocks;
    size_t count = 0;
    uint64_t bytes = 0;
    const Piece* end = first;
    while (const Piece* piece = nextPiece(work)) {
      if (count == kFrameMaxBlocks || bytes >= kFrameMaxPayload ||
          !isSameRegion(*first->remote, *piece->remote))
        break;
      blocks[count++] = {piece->remoteOffset, piece->bytes};
      bytes += piece->bytes;
      work.offset = piece->bytes;
      end = piece + 1;
    }
    const bool isList = count > 1;
    Frame frame = placeFrame(isList ? FrameKind::kGetList : FrameKind::kGetRequest, *first->remote,
                             isList ? 0 : first->remoteOffset);
    frame.sequence = requests_.add(work, {first, end}, bytes);
    frame.value = isList ? count : bytes;
    frame.payload = static_cast<uint32_t>(isList ? count * kFrameBlockBytes : 0);
    ++work.scratch[0];
    batch_.add(frame, std::span(blocks).first(isList ? count : 0));
  }
  if (nextPiece(work) == nullptr) {
    current_ = nullptr;
    noteRoom(effects);
    getPartEnded(work, Code::kOk, effects);
  }
  return first != nullptr;
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
  replies_.endAll(effects.unpinned);
  for (const Lent& lent : lent_) effects.unpinned.push_back(lent.allocation);
  lent_.clear();
  entries_.clear();
  cancels_.clear();
  acks_.clear();
  gets_.clear();
  current_ = nullptr;
  abandoned_ = Code::kOk;
  effects.wake = true;
}

}  // namespace peerlane
