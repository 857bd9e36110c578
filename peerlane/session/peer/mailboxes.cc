// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/mailboxes.h"

#include <algorithm>
#include <cstring>

#include "peerlane/core/status.h"
#include "peerlane/os/mappings/nofault_copy.h"
#include "peerlane/program/model/waker.h"
#include "peerlane/program/words/word.h"

namespace peerlane {
namespace {

// So many bytes are copied between two looks at cancellation.
constexpr uint64_t kMappedSlice = 1 << 20;

}  // namespace

const RemoteMemory& LinkDispatch::linkMemoryOf(const MailboxEntry& entry) {
  const RemoteMemory* const memory = entry.pieceCount != 0 ? entry.pieces[0].remote : entry.remote;
  PEERLANE_CHECK(memory != nullptr &&
                 (entry.isMapped ? memory->mapped != nullptr : memory->agent != nullptr));
  return *memory;
}

Served LinkDispatch::serve(AgentWork& work) {
  const RemoteMemory& memory = linkMemoryOf(*work.entry);
  Agent* const agent = work.entry->isMapped ? nullptr : memory.agent;
  const bool mustBeOldest = agent != last_ || agent == nullptr || work.entry->afterAll;
  if (mustBeOldest && !work.mailbox->isOldest(work)) return Served::kAgain;
  last_ = agent;
  if (agent == nullptr) return serveMapped(work);
  work.mustStand = agent != words_.load(std::memory_order_acquire);
  return agent->serve(work);
}

// A run makes such copies itself; these are of entries that were prepared for a device to ring.
Served LinkDispatch::serveMapped(AgentWork& work) {
  const MailboxEntry& entry = *work.entry;
  if (entry.pieceCount != 0) {
    const Piece& piece = entry.pieces[work.piece];
    const uint64_t bytes = std::min(piece.bytes - work.offset, kMappedSlice);
    std::byte* const there = piece.remote->mapped + piece.remoteOffset + work.offset;
    std::byte* const here = piece.local + work.offset;
    const IoSlice to{entry.verb == Verb::kPut ? there : here, bytes};
    const IoSlice from{entry.verb == Verb::kPut ? here : there, bytes};
    if (!entry.mayBeCut) {
      std::memcpy(to.base, from.base, bytes);
    } else if (nofaultRead({&to, 1}, {&from, 1}) != bytes) {
      work.code.store(Code::kRevoked, std::memory_order_relaxed);
      return Served::kDone;
    }
    work.offset += bytes;
    if (work.offset != piece.bytes) return Served::kMore;
    work.offset = 0;
    return ++work.piece == entry.pieceCount ? Served::kDone : Served::kMore;
  }
  std::byte* const word = entry.remote->mapped + entry.remoteOffset;
  if (entry.verb == Verb::kAdd64)
    addWord(word, entry.operand);
  else if (entry.verb == Verb::kStore)
    storeWord(word, entry.width, entry.operand, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // partner: Bell::leave
  if (entry.waker != nullptr) entry.waker->ring();
  return Served::kDone;
}

Mailbox* Mailboxes::borrow(uint32_t slots) {
  const MutexLock lock(mutex_);
  const auto fits = [slots](const Mailbox* one) { return one->slots() == slots; };
  auto found = std::find_if(free_.rbegin(), free_.rend(), fits);
  if (found == free_.rend()) {
    all_.push_back(std::make_unique<Dispatched>(words_, slots));
    free_.push_back(&all_.back()->mailbox);
    found = free_.rbegin();
  }
  Mailbox* mailbox = *found;
  free_.erase(std::next(found).base());
  lent_.fetch_add(1, std::memory_order_relaxed);
  return mailbox;
}

void Mailboxes::giveBack(Mailbox* mailbox) {
  PEERLANE_CHECK(mailbox->idle());
  const MutexLock lock(mutex_);
  free_.push_back(mailbox);
  lent_.fetch_sub(1, std::memory_order_relaxed);
}

bool Mailboxes::serve() {
  const MutexLock lock(mutex_);
  bool moved = false;
  for (const auto& one : all_)
    if (one->mailbox.pending()) moved |= one->mailbox.serve();
  return moved;
}

}  // namespace peerlane
