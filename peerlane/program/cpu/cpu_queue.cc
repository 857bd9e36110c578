// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/cpu/cpu_queue.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "peerlane/program/words/word.h"

namespace peerlane::cpu {

Status CpuQueue::copy(const PortAddress& to, const PortAddress& from, uint64_t bytes) {
  if (failure_.isOk())
    ops_.push_back({.kind = Kind::kCopy, .to = to, .from = from, .bytes = bytes});
  return failure_;
}

Status CpuQueue::store(const PortAddress& word, uint64_t value) {
  if (failure_.isOk()) ops_.push_back({.kind = Kind::kStore, .to = word, .bytes = value});
  return failure_;
}

void CpuQueue::mark(Mark passed) {
  if (failure_.isOk()) ops_.push_back({.kind = Kind::kMark, .passed = std::move(passed)});
}

bool CpuQueue::isIdle() {
  return ops_.empty() && mailboxIsIdle();
}

PortQueue::Advance CpuQueue::advance() {
  bool moved = false;
  if (mailbox_ != nullptr && !mailbox_->idle()) moved = mailbox_->serve();
  uint64_t budget = kSliceBytes;
  while (carriesOn() && !ops_.empty() && budget != 0 && step(ops_.front(), moved, budget))
    ops_.pop_front();
  if (moved) return Advance::kMoved;
  return isIdle() ? Advance::kIdle : Advance::kPending;
}

// Looks at the mailbox's code before each op, because an agent may fail an entry at once.
bool CpuQueue::carriesOn() {
  if (failure_.isOk() && mailbox_ != nullptr && mailbox_->code() != Code::kOk)
    failure_ = Status(mailbox_->code(), "the link to the peer did not carry out a request");
  if (!failure_.isOk()) ops_.clear();
  return failure_.isOk();
}

// True when the op has been carried out, or is in the mailbox, where the order is kept.
bool CpuQueue::step(Op& op, bool& moved, uint64_t& budget) {
  const bool isCopy = op.kind == Kind::kCopy;
  const bool byAgent = op.kind != Kind::kMark &&
                       (op.to.address == nullptr || (isCopy && op.from.address == nullptr));
  // Loads and stores must not overtake entries that the agent has not performed yet, and no word
  // may announce bytes that the peer can still refuse: with the first such refusal the queue has
  // failed.
  if ((!byAgent || !isCopy) && (!mailboxIsIdle() || !carriesOn())) return false;
  if (byAgent) {
    const uint64_t slice = isCopy ? std::min(budget, op.bytes - op.done) : 0;
    if (!post(op, slice)) return false;
    moved = true;
    op.done += slice;
    budget -= slice;
    return !isCopy || op.done == op.bytes;
  }
  moved = true;
  if (op.kind == Kind::kMark) {
    op.passed->store(true, std::memory_order_release);
    return true;
  }
  if (op.kind == Kind::kStore) {
    storeWord(op.to.address, Width::k64, op.bytes, std::memory_order_release);
    return true;
  }
  const uint64_t slice = std::min(budget, op.bytes - op.done);
  const MappedPiece part{op.to.address + op.done, op.from.address + op.done, slice};
  if (copier_ != nullptr && op.bytes >= copier_->least())
    copier_->copy({.bytes = op.bytes}, {&part, 1}, slice);
  else
    std::memcpy(part.to, part.from, part.bytes);
  op.done += slice;
  budget -= slice;
  return op.done == op.bytes;  // else the proxy serves other queues before the next slice
}

// `slice`: how many of a copy's remaining bytes to post.
bool CpuQueue::post(const Op& op, uint64_t slice) {
  MailboxEntry* entry = mailbox_->claim();
  if (entry == nullptr) return false;
  if (op.kind == Kind::kStore) {
    entry->verb = Verb::kStore;
    entry->width = Width::k64;
    entry->order = Order::kRelease;
    entry->remote = op.to.remote;
    entry->remoteOffset = op.to.offset;
    entry->operand = op.bytes;
  } else {
    const bool isPut = op.to.address == nullptr;
    const PortAddress& far = isPut ? op.to : op.from;
    Piece& piece = pieces_[posted_ % pieces_.size()];
    piece = {.local = (isPut ? op.from.address : op.to.address) + op.done,
             .remote = far.remote,
             .remoteOffset = far.offset + op.done,
             .bytes = slice};
    entry->verb = isPut ? Verb::kPut : Verb::kGet;
    entry->pieceCount = 1;
    entry->pieces = &piece;
  }
  ++posted_;
  mailbox_->ring();
  (void)mailbox_->serve();
  return true;
}

}  // namespace peerlane::cpu
