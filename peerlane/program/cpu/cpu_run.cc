// SPDX-License-Identifier: Apache-2.0
//
// CpuRun: the interpreter of the CPU executor. Posting path: no allocation (but for the first
// indexed post of a given size, where an agent or threads move it), no lock (but for large copies
// that threads help with).
#include <algorithm>
#include <cstring>

#include "peerlane/core/device_code.h"
#include "peerlane/program/cpu/cpu_program.h"
#include "peerlane/program/words/word.h"

namespace peerlane::cpu {

void CpuRun::start(const CpuProgram& prepared, std::span<const uint64_t> cursors, Indices indices,
                   LateBinder* late, bool mayLinger) {
  PEERLANE_CHECK(ended_);
  mayLinger_ = mayLinger;
  prepared_ = &prepared;
  late_ = late;
  indices_ = indices;
  std::copy(cursors.begin(), cursors.end(), cursors_.begin());
  lateResolved_ = 0;
  pc_ = 0;
  piece_ = 0;
  mapped_.restart();
  posted_ = false;
  puts_.clear();
  ending_ = false;
  ended_ = false;
  code_ = Code::kOk;
  bytesMoved_ = 0;
  runPieceCount_ = 0;
  cancel_.store(Code::kOk, std::memory_order_relaxed);
}

Step CpuRun::advance(uint64_t budgetBytes) {
  if (ended_) return Step::kEnded;
  const std::vector<Op>& ops = prepared_->program_.ops;
  uint64_t budget = budgetBytes;
  patient_ = budgetBytes == UINT64_MAX;
  while (!ending_ && pc_ < ops.size()) {
    if (const Code cancelled = cancel_.load(std::memory_order_acquire); cancelled != Code::kOk) {
      code_ = cancelled;
      break;
    }
    switch (runOp(ops[pc_], budget)) {
      case OpStep::kNext:
        ++pc_;
        piece_ = 0;
        mapped_.restart();
        break;
      case OpStep::kBlocked: return Step::kBlocked;
      case OpStep::kMore: return Step::kMore;
      case OpStep::kEnd: return settle();
    }
  }
  return settle();
}

// The run has no more ops to run, after success or failure; it has ended when no agent works for it
// any more.
Step CpuRun::settle() {
  ending_ = true;
  if (posted_) {
    Mailbox& mailbox = *prepared_->binding_.mailbox;
    // The mailbox drops entries that the agent has not begun and reports the code; when the agent
    // has performed all of them, a late cancel changes nothing.
    const Code stop = code_ != Code::kOk ? code_ : cancel_.load(std::memory_order_acquire);
    if (stop != Code::kOk) mailbox.abort(stop);
    if (!drained()) return Step::kBlocked;
    mailbox.clearAbort();
  }
  ended_ = true;
  return Step::kEnded;
}

// True when every entry rung so far has completed; serves them on this thread if no other thread
// does.
bool CpuRun::drained() {
  if (!posted_) return true;
  Mailbox& mailbox = *prepared_->binding_.mailbox;
  // A caller without a budget waits until an agent that works synchronously (cma) has finished,
  // also when another thread is serving the mailbox.
  bool goesOn = mailbox.serve();
  while (patient_ && !mailbox.idle() && (goesOn || mailbox.beingServed())) {
    cpuRelax();
    goesOn = mailbox.serve();
  }
  if (!mailbox.idle()) return false;
  posted_ = false;
  puts_.clear();
  runPieceCount_ = 0;
  if (mailbox.code() != Code::kOk) {
    if (code_ == Code::kOk) code_ = mailbox.code();
    mailbox.resetCode();
  }
  return true;
}

MailboxEntry* CpuRun::claimEntry() {
  Mailbox& mailbox = *prepared_->binding_.mailbox;
  MailboxEntry* entry = mailbox.claim();
  if (entry == nullptr) mailbox.serve();
  return entry;
}

const BoundTarget& CpuRun::bound(TargetId id) const {
  return prepared_->program_.targets[id].late ? lateTargets_[id] : prepared_->binding_.targets[id];
}

bool CpuRun::isAgentOp(const Op& op) const {
  const CpuProgram::Extent& extent = prepared_->extents_[pc_];
  switch (op.code) {
    case OpCode::kCopy:
      if (!extent.deferred) return extent.agent;
      return bound(op.to.target).address == nullptr || bound(op.from.target).address == nullptr;
    case OpCode::kCopyList: {
      if (!extent.deferred) return extent.agent;
      const Segment& first = prepared_->program_.lists[op.list].first;
      return bound(first.to).address == nullptr || bound(first.from).address == nullptr;
    }
    case OpCode::kStore:
    case OpCode::kAdd64:
    case OpCode::kFlush: return bound(op.to.target).address == nullptr;
    case OpCode::kWait: return false;
    case OpCode::kFence: return true;  // entries of one mailbox take effect in order
  }
  return false;
}

Status CpuRun::resolve(TargetId id) {
  if (id == kNoTarget || !prepared_->program_.targets[id].late || (lateResolved_ & (1u << id)) != 0)
    return Status::ok();
  BoundTarget target;
  if (late_ == nullptr) return Status(Code::kInternal, "a late target without a binder");
  PEERLANE_RETURN_IF_ERROR(late_->bind(id, target));
  lateTargets_[id] = target;
  lateResolved_ |= 1u << id;
  return Status::ok();
}

CpuRun::OpStep CpuRun::runOp(const Op& op, uint64_t& budget) {
  for (const TargetId id : {op.to.target, op.from.target}) {
    if (const Status status = resolve(id); !status.isOk()) {
      code_ = status.code();
      return OpStep::kEnd;
    }
  }
  // Plain stores must not overtake entries that the agent has not performed yet.
  if (posted_ && !isAgentOp(op)) {
    if (!drained()) return OpStep::kBlocked;
    if (code_ != Code::kOk) return OpStep::kEnd;
  }
  switch (op.code) {
    case OpCode::kCopy:
    case OpCode::kCopyList: return runCopy(op, budget);
    case OpCode::kStore:
    case OpCode::kAdd64: return runWord(op);
    case OpCode::kWait: return runWait(op);
    case OpCode::kFence: std::atomic_signal_fence(std::memory_order_seq_cst); return OpStep::kNext;
    case OpCode::kFlush:
      return OpStep::kNext;  // mapped stores are visible; agents confirm before a run ends
  }
  return OpStep::kNext;
}

BoundTarget CpuRun::placed(const Place& place) const {
  BoundTarget target = bound(place.target);
  const Target& declared = prepared_->program_.targets[place.target];
  uint64_t offset = place.offset;
  if (declared.slots > 0) {
    const uint64_t position =
        cursors_[declared.cursor] + static_cast<uint64_t>(int64_t{place.slotDelta});
    offset += position % declared.slots * declared.strideBytes;
  }
  if (target.address != nullptr) target.address += offset;
  target.remoteOffset += offset;
  // A late target may be shorter than the program's offset into it.
  target.bytes -= std::min(target.bytes, offset);
  return target;
}

uint64_t CpuRun::operandValue(const Operand& operand) const {
  const uint64_t delta = static_cast<uint64_t>(operand.delta);
  return operand.cursor == kNoCursor ? delta : cursors_[operand.cursor] + delta;
}

CpuRun::OpStep CpuRun::runWait(const Op& op) {
  const BoundTarget at = placed(op.to);
  if (at.address == nullptr) {  // a late target; prepare() refuses others
    code_ = Code::kNotSupported;
    return OpStep::kEnd;
  }
  const uint64_t word = loadWord(at.address, op.width);
  if (!satisfies(word, op.compare, operandValue(op.operand), op.width)) return OpStep::kBlocked;
  if (op.width == Width::k64 && isPoison(word)) {
    const Code cancelled = cancel_.load(std::memory_order_acquire);
    code_ = cancelled != Code::kOk ? cancelled : Code::kPeerLost;
    return OpStep::kEnd;
  }
  return OpStep::kNext;
}

bool CpuRun::awaited(const std::byte*& word, uint64_t& operand) const {
  if (ended_ || pc_ >= prepared_->program_.ops.size()) return false;
  const Op& op = prepared_->program_.ops[pc_];
  if (op.code != OpCode::kWait) return false;
  word = placed(op.to).address;
  operand = operandValue(op.operand);
  return word != nullptr && !satisfies(loadWord(word, op.width), op.compare, operand, op.width);
}

CpuRun::OpStep CpuRun::runWord(const Op& op) {
  const BoundTarget at = placed(op.to);
  const uint64_t value = operandValue(op.operand);
  if (at.address != nullptr) {
    if (op.code == OpCode::kAdd64) {
      addWord(at.address, value);
    } else {
      // Release makes the copies before it visible with it. With a waker it must also not sink
      // below the load of the poller count that follows; with a fence after it, the word's cache
      // line travels together with the payload's; with an exchange it would not.
      storeWord(
          at.address, op.width, value,
          op.order == Order::kRelease ? std::memory_order_release : std::memory_order_relaxed);
      if (at.waker != nullptr) std::atomic_thread_fence(std::memory_order_seq_cst);
    }
    if (at.waker != nullptr) at.waker->ring();
    return OpStep::kNext;
  }
  // The owner may refuse the copy and still take the word, which would then announce bytes that
  // never came.
  OpenPuts::Before before = OpenPuts::Before::kAny;
  if (op.order == Order::kRelease) {
    before = puts_.before(at.remote);
    if (before == OpenPuts::Before::kAnswers && !drained()) return OpStep::kBlocked;
    if (before != OpenPuts::Before::kAny && code_ != Code::kOk) return OpStep::kEnd;
  }
  MailboxEntry* entry = claimEntry();
  if (entry == nullptr) return OpStep::kBlocked;
  entry->verb = op.code == OpCode::kAdd64 ? Verb::kAdd64 : Verb::kStore;
  entry->width = op.width;
  entry->order = op.order;
  entry->onlyAfterPrevious = before == OpenPuts::Before::kLast;
  entry->mayLinger = mayLinger_;
  puts_.addOther();
  entry->remote = at.remote;
  entry->remoteOffset = at.remoteOffset;
  entry->operand = value;
  prepared_->binding_.mailbox->ring();
  posted_ = true;
  return OpStep::kNext;
}

CpuRun::OpStep CpuRun::runCopy(const Op& op, uint64_t& budget) {
  const CpuProgram::Extent& extent = prepared_->extents_[pc_];
  if (!extent.deferred) {
    if (extent.agent)
      return sendPieces(std::span(prepared_->pieces_).subspan(extent.first, extent.count),
                        extent.isPut, extent.isOurs);
    return runMapped(std::span(prepared_->mapped_).subspan(extent.first, extent.count),
                     extent.bytes, extent.mayBeCut, budget);
  }
  if (op.code == OpCode::kCopyList) return runIndexed(prepared_->program_.lists[op.list], budget);

  const BoundTarget to = placed(op.to);
  const BoundTarget from = placed(op.from);
  const uint64_t bytes =
      std::min({op.bytes, to.bytes, from.bytes});  // a late target may be cut to 0
  if (bytes == 0) return OpStep::kNext;
  if (to.address != nullptr && from.address != nullptr) {
    const MappedPiece piece{to.address, from.address, bytes};
    return runMapped({&piece, 1}, bytes, to.mayBeCut || from.mayBeCut, budget);
  }
  const bool isPut = to.address == nullptr;
  if (runPieceCount_ == runPieces_.size()) {
    if (!drained()) return OpStep::kBlocked;
    if (code_ != Code::kOk) return OpStep::kEnd;
  }
  Piece& piece = runPieces_[runPieceCount_];
  piece = isPut ? Piece{from.address, to.remote, to.remoteOffset, bytes}
                : Piece{to.address, from.remote, from.remoteOffset, bytes};
  const OpStep step = sendPieces({&piece, 1}, isPut, isPut && from.isOurs);
  if (step == OpStep::kNext) ++runPieceCount_;
  return step;
}

CpuRun::OpStep CpuRun::sendPieces(std::span<const Piece> pieces, bool isPut, bool isOurs) {
  MailboxEntry* entry = claimEntry();
  if (entry == nullptr) return OpStep::kBlocked;
  entry->verb = isPut ? Verb::kPut : Verb::kGet;
  entry->pieces = pieces.data();
  entry->pieceCount = static_cast<uint32_t>(pieces.size());
  entry->mayLinger = mayLinger_ && isPut;
  entry->isOurs = isOurs;
  prepared_->binding_.mailbox->ring();
  posted_ = true;
  for (const Piece& piece : pieces) bytesMoved_ += piece.bytes;
  if (isPut)
    puts_.add(pieces.front().remote, isOurs);
  else
    puts_.addOther();
  return OpStep::kNext;
}

CpuRun::OpStep CpuRun::runMapped(std::span<const MappedPiece> pieces, uint64_t bytes, bool mayBeCut,
                                 uint64_t& budget) {
  if (mayBeCut && !mapped_.advanceByKernel(pieces, budget, bytesMoved_)) {
    code_ = Code::kRevoked;
    return OpStep::kEnd;
  }
  if (!mayBeCut) bytesMoved_ += mapped_.advance(pieces, bytes, prepared_->copier_, budget);
  return mapped_.isAtEnd(pieces) ? OpStep::kNext : OpStep::kMore;
}

CpuRun::OpStep CpuRun::runIndexed(const CopyLayout& list, uint64_t& budget) {
  const BoundTarget& to = bound(list.first.to);
  const BoundTarget& from = bound(list.first.from);
  if (to.address == nullptr || from.address == nullptr) {
    if (piece_ == 0) makeIndexedPieces(list, to.address == nullptr);
    piece_ = 1;  // the pieces are made; a full mailbox brings us here again
    return sendPieces(indexedPieces_, to.address == nullptr, from.isOurs);
  }
  const size_t count = indices_.to.size();
  const uint64_t block = list.first.bytes;
  const HostCopier* const copier = prepared_->copier_;
  const bool mayBeCut = to.mayBeCut || from.mayBeCut;
  if (mayBeCut || (copier != nullptr && count * block >= copier->least())) {
    if (mapped_.isAtStart()) makeIndexedMapped(list);
    return runMapped(indexedMapped_, count * block, mayBeCut, budget);
  }
  // Runs can only be merged where neighbouring blocks touch on both sides.
  const bool mergeable = list.toStride == block && list.fromStride == block;
  while (piece_ < count) {
    size_t run = 1;
    const uint64_t toIndex = indices_.to[piece_];
    const uint64_t fromIndex = indices_.from[piece_];
    if (mergeable) {
      while (piece_ + run < count && indices_.to[piece_ + run] == toIndex + run &&
             indices_.from[piece_ + run] == fromIndex + run && run * block < budget)
        ++run;
    }
    const uint64_t bytes = run * block;
    std::memcpy(to.address + list.first.toOffset + toIndex * list.toStride,
                from.address + list.first.fromOffset + fromIndex * list.fromStride, bytes);
    bytesMoved_ += bytes;
    piece_ += run;
    budget -= std::min(budget, bytes);
    if (budget == 0 && piece_ < count) return OpStep::kMore;
  }
  return OpStep::kNext;
}

void CpuRun::makeIndexedMapped(const CopyLayout& list) {
  std::byte* const to = bound(list.first.to).address + list.first.toOffset;
  const std::byte* const from = bound(list.first.from).address + list.first.fromOffset;
  indexedMapped_.clear();
  for (size_t i = 0; i < indices_.to.size(); ++i) {
    const MappedPiece piece{to + indices_.to[i] * list.toStride,
                            from + indices_.from[i] * list.fromStride, list.first.bytes};
    if (!indexedMapped_.empty()) {
      MappedPiece& last = indexedMapped_.back();
      if (last.to + last.bytes == piece.to && last.from + last.bytes == piece.from) {
        last.bytes += piece.bytes;
        continue;
      }
    }
    indexedMapped_.push_back(piece);
  }
}

void CpuRun::makeIndexedPieces(const CopyLayout& list, bool isPut) {
  const BoundTarget& to = bound(list.first.to);
  const BoundTarget& from = bound(list.first.from);
  const uint64_t block = list.first.bytes;
  indexedPieces_.clear();
  for (size_t i = 0; i < indices_.to.size(); ++i) {
    const uint64_t toOffset = list.first.toOffset + indices_.to[i] * list.toStride;
    const uint64_t fromOffset = list.first.fromOffset + indices_.from[i] * list.fromStride;
    Piece piece =
        isPut ? Piece{from.address + fromOffset, to.remote, to.remoteOffset + toOffset, block}
              : Piece{to.address + toOffset, from.remote, from.remoteOffset + fromOffset, block};
    if (!indexedPieces_.empty()) {
      Piece& last = indexedPieces_.back();
      if (last.local + last.bytes == piece.local &&
          last.remoteOffset + last.bytes == piece.remoteOffset) {
        last.bytes += block;
        continue;
      }
    }
    indexedPieces_.push_back(piece);
  }
}

}  // namespace peerlane::cpu
