// SPDX-License-Identifier: Apache-2.0
//
// Mailboxes: those to the links of one peer, lent to one run at a time. An entry is performed by
// the link that attached its memory, and entries of one mailbox take effect in order, also where
// they are for several links. None is freed before the peer, because an agent may still be leaving
// one when its last entry is complete. Owned by PeerCore; thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/program/model/mailbox.h"

namespace peerlane {

// Hands each entry to its link: not before the entries that went to another one are complete. One
// mailbox has one; calls as for Agent::serve, so one thread at a time.
class LinkDispatch final : public Agent {
 public:
  Served serve(AgentWork& work) override;
  void abandon(AgentWork& work, Code code) override { agentOf(*work.entry)->abandon(work, code); }
  void handedOut(AgentWork& first, AgentWork& last) override { last_->handedOut(first, last); }

 private:
  static Agent* agentOf(const MailboxEntry& entry);
  Agent* last_ = nullptr;
};

class Mailboxes {
 public:
  // Requires: the peer was ready once.
  Mailbox* borrow();
  // Requires: it is idle.
  void giveBack(Mailbox* mailbox);
  // Has the links perform what is posted in those that are lent. By the thread that has the turn.
  // True when something moved.
  bool turn() { return lent_.load(std::memory_order_relaxed) != 0 && serve(); }

 private:
  bool serve();

  struct Dispatched {
    LinkDispatch dispatch;
    Mailbox mailbox{dispatch};
  };
  std::atomic<uint32_t> lent_{0};  // a hint for turns: worth taking the lock
  Mutex mutex_;
  std::vector<std::unique_ptr<Dispatched>> all_ PEERLANE_GUARDED_BY(mutex_);
  std::vector<Mailbox*> free_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
