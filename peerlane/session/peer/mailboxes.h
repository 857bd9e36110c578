// SPDX-License-Identifier: Apache-2.0
//
// Mailboxes: those to the host link of one peer, lent to one run at a time. None is freed before
// the peer, because an agent may still be leaving one when its last entry is complete. Owned by
// PeerCore; thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/program/model/mailbox.h"
#include "peerlane/session/peer/link_set.h"

namespace peerlane {

class Mailboxes {
 public:
  explicit Mailboxes(const LinkSet& links) : links_(links) {}

  // Requires: the peer was ready once.
  Mailbox* borrow();
  // Requires: it is idle.
  void giveBack(Mailbox* mailbox);
  // Has the link perform what is posted in those that are lent. By the thread that has the turn.
  // True when something moved.
  bool turn() { return lent_.load(std::memory_order_relaxed) != 0 && serve(); }

 private:
  bool serve();

  const LinkSet& links_;
  std::atomic<uint32_t> lent_{0};  // a hint for turns: worth taking the lock
  Mutex mutex_;
  std::vector<std::unique_ptr<Mailbox>> all_ PEERLANE_GUARDED_BY(mutex_);
  std::vector<Mailbox*> free_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
