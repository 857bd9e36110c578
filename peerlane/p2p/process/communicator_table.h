// SPDX-License-Identifier: Apache-2.0
//
// CommunicatorTable: the communicators of this process, by their handles (P2PComm). A handle is
// used once: after P2PCommDestroy it names nothing. Thread-safe. Owner: P2pProcess.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/p2p/pair/pair_communicator.h"

namespace peerlane::p2p {

class CommunicatorTable {
 public:
  // The next handle is the one after the last of `other`, so that a handle of `other` names no
  // communicator here. Call it before the first add().
  void countFrom(const CommunicatorTable& other) { next_.store(other.next_.load()); }
  P2PComm add(std::shared_ptr<PairCommunicator> pair);
  // Null: there is none of that handle, as for take().
  std::shared_ptr<PairCommunicator> find(P2PComm comm) const;
  std::shared_ptr<PairCommunicator> take(P2PComm comm);
  // All communicators that have `process` at their other side.
  std::vector<std::shared_ptr<PairCommunicator>> with(const ProcessToken& process) const;

 private:
  std::atomic<uint64_t> next_{1};
  mutable SharedMutex mutex_;
  std::unordered_map<P2PComm, std::shared_ptr<PairCommunicator>> pairs_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane::p2p
