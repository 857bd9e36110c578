// SPDX-License-Identifier: Apache-2.0
//
// CommunicatorPair: two connected contexts of one process and a communicator of two ranks on them.
// External synchronization required.
#pragma once

#include <future>
#include <memory>

#include "tests/channel/context_pair.h"

namespace peerlane {

struct CommunicatorPair {
  explicit CommunicatorPair(ContextPair connected, const CommunicatorOptions& options = {})
      : contexts(std::move(connected)) {
    meet(options);
  }
  explicit CommunicatorPair(const Config& config, const CommunicatorOptions& options = {})
      : CommunicatorPair(ContextPair(config), options) {}
  explicit CommunicatorPair(const RouteCase& route, const CommunicatorOptions& options = {})
      : CommunicatorPair(configFor(route), options) {}

  // A (further) communicator on the same peers.
  void meet(const CommunicatorOptions& options) {
    auto other = std::async(std::launch::async, [&] {
      return Communicator::create(*contexts.b, {contexts.toA, Peer()}, 1, options);
    });
    zero = MUST(Communicator::create(*contexts.a, {Peer(), contexts.toB}, 0, options));
    one = MUST(other.get());
  }

  ContextPair contexts;
  std::unique_ptr<Communicator> zero;  // of contexts.a
  std::unique_ptr<Communicator> one;   // of contexts.b
};

inline Code endOf(const Result<Transfer>& transfer) {
  if (!transfer.isOk()) return transfer.status().code();
  const Status ended = transfer->wait(kSoon);
  return ended.code();
}

}  // namespace peerlane
