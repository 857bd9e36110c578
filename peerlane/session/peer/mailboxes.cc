// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/mailboxes.h"

#include "peerlane/core/status.h"

namespace peerlane {

Agent* LinkDispatch::agentOf(const MailboxEntry& entry) {
  const RemoteMemory* const memory = entry.pieceCount != 0 ? entry.pieces[0].remote : entry.remote;
  PEERLANE_CHECK(memory != nullptr && memory->agent != nullptr);
  return memory->agent;
}

Served LinkDispatch::serve(AgentWork& work) {
  Agent* const agent = agentOf(*work.entry);
  if (agent != last_ && !work.mailbox->isOldest(work)) return Served::kAgain;
  last_ = agent;
  work.mustStand = agent != words_.load(std::memory_order_acquire);
  return agent->serve(work);
}

Mailbox* Mailboxes::borrow() {
  const MutexLock lock(mutex_);
  if (free_.empty()) {
    all_.push_back(std::make_unique<Dispatched>(words_));
    free_.push_back(&all_.back()->mailbox);
  }
  Mailbox* mailbox = free_.back();
  free_.pop_back();
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
