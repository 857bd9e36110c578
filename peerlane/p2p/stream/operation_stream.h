// SPDX-License-Identifier: Apache-2.0
//
// The stream that an aclrtStream of a call stands for. HostStreams is the table of the streams that
// P2PHostStreamCreate made, by their handles; every other handle is a stream of CUDA. Thread-safe.
// Owner: P2pProcess.
#pragma once

#include <atomic>
#include <map>
#include <memory>

#include "peerlane/channel/operation/host_stream.h"
#include "peerlane/core/mutex.h"
#include "peerlane/p2p.h"
#include "peerlane/p2p/stream/pending_transfers.h"
#include "peerlane/program/device/device_stream.h"

namespace peerlane::p2p {

struct HostQueue {
  static Result<std::shared_ptr<HostQueue>> create();

  std::unique_ptr<HostStream> stream;
  PendingTransfers pending;
};

// Either a host queue or a stream of CUDA.
struct OperationStream {
  std::shared_ptr<HostQueue> host;
  bool isOwn = false;  // `host` is the communicator's own, for calls that name no stream
  DeviceStream device{};

  // Adds a transfer that a call has posted on this stream to the lists of those that may be asked
  // for it: the stream's own, and `communicator`, that of the call's communicator.
  void record(const Transfer& transfer, PostName name, PendingTransfers& communicator) const;
};

class HostStreams {
 public:
  Result<aclrtStream> create();
  // The next handle is the one after the last of `other`, so that a handle of `other` names no
  // stream here. Call it before the first create().
  void countFrom(const HostStreams& other) { made_.store(other.made_.load()); }
  // Whether the handle is or was one of P2PHostStreamCreate.
  static bool isOne(aclrtStream handle);
  // Null: the table has no such stream.
  std::shared_ptr<HostQueue> find(aclrtStream handle) const;
  std::shared_ptr<HostQueue> take(aclrtStream handle);

 private:
  std::atomic<size_t> count_{
      0};  // of queues_, so that a program without host streams takes no lock
  std::atomic<uint64_t> made_{0};
  mutable SharedMutex mutex_;
  std::map<aclrtStream, std::shared_ptr<HostQueue>> queues_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane::p2p
