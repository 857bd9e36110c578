// SPDX-License-Identifier: Apache-2.0
//
// FirstAnswer: a request that the peer's NIC has to answer before anybody relies on a link. Two
// pairs may be joined although nothing gets from one to the other: networks that are not connected,
// or a firewall that drops RoCE. All functions but isAwaited() are for the thread that has the
// turn.
#pragma once

#include <atomic>

#include "peerlane/program/model/mailbox.h"

namespace peerlane {

class FirstAnswer {
 public:
  // `agent` ends all works before this object goes.
  explicit FirstAnswer(Agent& agent) : mailbox_(agent) {}

  // Asks, when called first, and takes the answer. True when something moved. Requires: the pairs
  // of both sides are joined.
  bool advance();
  // Any thread.
  bool isAwaited() const { return state_.load(std::memory_order_acquire) != State::kCame; }
  // Requires: !isAwaited().
  Code code() const { return mailbox_.code(); }

 private:
  enum class State : uint8_t { kToAsk, kAsked, kCame };

  Mailbox mailbox_;
  std::atomic<State> state_{State::kToAsk};
};

}  // namespace peerlane
