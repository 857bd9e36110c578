// SPDX-License-Identifier: Apache-2.0
//
// OperationStream: what a call's aclrtStream means. HostStreams: those of P2PHostStreamCreate, by
// their handles; anything else is a stream of CUDA. Thread-safe.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <shared_mutex>

#include "peerlane/channel/operation/host_stream.h"
#include "peerlane/p2p.h"
#include "peerlane/p2p/stream/pending_transfers.h"
#include "peerlane/program/device/device_stream.h"

namespace peerlane::p2p {

struct HostQueue {
  std::unique_ptr<HostStream> stream;
  PendingTransfers pending;
};

// A host queue, or a stream of CUDA.
struct OperationStream {
  std::shared_ptr<HostQueue> host;
  bool isOwn = false;  // the communicator's
  DeviceStream device{};
};

class HostStreams {
 public:
  Result<aclrtStream> create();
  // From `other`'s next on: what names one of its streams is no name here. Before the first one.
  void countFrom(const HostStreams& other) { made_.store(other.made_.load()); }
  // It is or was one of these.
  static bool isOne(aclrtStream handle);
  // Null: not one of these.
  std::shared_ptr<HostQueue> find(aclrtStream handle) const;
  std::shared_ptr<HostQueue> take(aclrtStream handle);

 private:
  std::atomic<size_t> count_{0};  // so that programs without any do not look
  std::atomic<uint64_t> made_{0};
  mutable std::shared_mutex mutex_;
  std::map<aclrtStream, std::shared_ptr<HostQueue>> queues_;  // under mutex_
};

}  // namespace peerlane::p2p
