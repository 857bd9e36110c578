// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/first_answer.h"

namespace peerlane {

bool FirstAnswer::advance() {
  const State state = state_.load(std::memory_order_relaxed);
  if (state == State::kCame) return false;
  if (state == State::kToAsk) {
    *mailbox_.claim() = MailboxEntry{.verb = Verb::kFlush};
    mailbox_.ring();
    state_.store(State::kAsked, std::memory_order_relaxed);
  }
  const bool moved = mailbox_.serve();
  if (mailbox_.pending()) return moved;
  state_.store(State::kCame, std::memory_order_release);
  return true;
}

}  // namespace peerlane
