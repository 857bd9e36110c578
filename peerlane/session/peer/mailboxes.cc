// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/mailboxes.h"

#include "peerlane/core/status.h"

namespace peerlane {

Mailbox* Mailboxes::borrow() {
  const MutexLock lock(mutex_);
  if (free_.empty()) {
    all_.push_back(std::make_unique<Mailbox>(links_.host()));
    free_.push_back(all_.back().get());
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
  for (const auto& mailbox : all_)
    if (mailbox->pending()) moved |= mailbox->serve();
  return moved;
}

}  // namespace peerlane
