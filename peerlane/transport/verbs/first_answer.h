// SPDX-License-Identifier: Apache-2.0
//
// FirstAnswer: a request that the peer's NIC has to answer before anybody relies on a link. Two
// pairs may be joined although nothing gets from one to the other: networks that are not connected,
// or a firewall that drops RoCE.
#pragma once

#include <atomic>

#include "peerlane/program/model/mailbox.h"

namespace peerlane {

class FirstAnswer {
 public:
  // It outlives the works of `agent`.
  explicit FirstAnswer(Agent& agent) : mailbox_(agent) {}

  // Asks, when called first, and takes the answer. True when something moved. One thread at a time,
  // the one that has the turn. Requires: the pairs of both sides are joined.
  bool advance();
  // Any thread.
  bool isAwaited() const { return !isAsked_.load(std::memory_order_acquire) || mailbox_.pending(); }
  // Any thread. Requires: !isAwaited().
  Code code() const { return mailbox_.code(); }

 private:
  Mailbox mailbox_;
  std::atomic<bool> isAsked_{false};  // release, after the doorbell
};

}  // namespace peerlane
