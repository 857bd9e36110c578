// SPDX-License-Identifier: Apache-2.0
//
// PairLanes: the queue pairs of a link, each with what is under way over it. Completions of all
// come to one owner. External synchronization, but for the functions that say otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "peerlane/program/model/mailbox.h"
#include "peerlane/transport/verbs/device/queue_pair.h"
#include "peerlane/transport/verbs/request/request_chain.h"
#include "peerlane/transport/verbs/request/request_ledger.h"

namespace peerlane {

struct PairLane {
  explicit PairLane(std::unique_ptr<QueuePair> joined)
      : pair(std::move(joined)), ledger(pair->limits().requests) {}

  // By one call of the device's driver; the chain is empty afterwards. An error names the pair.
  Status post(RequestChain& chain);

  std::unique_ptr<QueuePair> pair;
  RequestLedger ledger;
};

class PairLanes {
 public:
  explicit PairLanes(std::unique_ptr<QueuePair> first) { add(std::move(first)); }

  PairLane& first() { return *lanes_.front(); }
  std::vector<std::unique_ptr<PairLane>>& all() { return lanes_; }
  // The one over which the request is under way; else null.
  PairLane* of(uint64_t request) const;
  bool isIdle() const;
  std::vector<uint32_t> numbers() const;

  void add(std::unique_ptr<QueuePair> pair) {
    lanes_.push_back(std::make_unique<PairLane>(std::move(pair)));
  }
  void stopAll();
  void endAll();
  // `pair` is the only one. Returns the others.
  std::vector<std::unique_ptr<PairLane>> replace(std::unique_ptr<QueuePair> pair);

  // --- After endAll() ---
  // Works that have failed already, and are under way by the ledgers.
  std::vector<AgentWork*> failedWorks();
  // No request is for it any more.
  void forget(const AgentWork& work);

 private:
  std::vector<std::unique_ptr<PairLane>> lanes_;  // never empty
};

}  // namespace peerlane
