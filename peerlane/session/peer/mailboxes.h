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

// Hands each entry to its link: not before the entries that went to another one are complete. An
// entry for memory that is mapped here (MailboxEntry::isMapped) it performs itself. A put
// over another link than that of the words is complete when it stands in memory, because the word
// that tells of it, of this mailbox or of another one, goes by another wire. One mailbox has one;
// calls as for Agent::serve, so one thread at a time.
class LinkDispatch final : public Agent {
 public:
  // `words`: the link that carries them.
  explicit LinkDispatch(const std::atomic<const Agent*>& words) : words_(words) {}

  Served serve(AgentWork& work) override;
  void abandon(AgentWork& work, Code code) override {
    linkMemoryOf(*work.entry).agent->abandon(work, code);  // it had answered kSent
  }
  void handedOut(AgentWork& first, AgentWork& last) override { last_->handedOut(first, last); }

 private:
  static const RemoteMemory& linkMemoryOf(const MailboxEntry& entry);
  static Served serveMapped(AgentWork& work);
  const std::atomic<const Agent*>& words_;
  Agent* last_ = nullptr;
};

class Mailboxes {
 public:
  // Before the first is borrowed, and when another link takes over.
  void setWords(const Agent& link) { words_.store(&link, std::memory_order_release); }
  // Requires: the peer was ready once. `slots`: as Mailbox::slots().
  Mailbox* borrow(uint32_t slots = Mailbox::kSlots);
  // Requires: it is idle.
  void giveBack(Mailbox* mailbox);
  // Has the links perform what is posted in those that are lent. By the thread that has the turn.
  // True when something moved.
  bool turn() { return lent_.load(std::memory_order_relaxed) != 0 && serve(); }

 private:
  bool serve();

  struct Dispatched {
    Dispatched(const std::atomic<const Agent*>& words, uint32_t slots)
        : dispatch(words), mailbox(dispatch, slots) {}
    LinkDispatch dispatch;
    Mailbox mailbox;
  };
  // Its own, because it is read until the last link has ended.
  std::atomic<const Agent*> words_{nullptr};
  std::atomic<uint32_t> lent_{0};  // a hint for turns: worth taking the lock
  Mutex mutex_;
  std::vector<std::unique_ptr<Dispatched>> all_ PEERLANE_GUARDED_BY(mutex_);
  std::vector<Mailbox*> free_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
