// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/first_answer.h"

namespace peerlane {

bool FirstAnswer::advance() {
  if (!isAsked_.load(std::memory_order_relaxed)) {
    *mailbox_.claim() = MailboxEntry{.verb = Verb::kFlush};
    mailbox_.ring();
    isAsked_.store(true, std::memory_order_release);
  }
  return mailbox_.pending() && mailbox_.serve();
}

}  // namespace peerlane
