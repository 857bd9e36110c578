// SPDX-License-Identifier: Apache-2.0
//
// HostAllocations: the host memory of P2PAllocHostMem. Each allocation is also a segment, so that
// messages find its region; its segment info is handed to nobody. Thread-safe. Owner: P2pProcess.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "peerlane/core/mutex.h"
#include "peerlane/p2p/process/process_contexts.h"
#include "peerlane/p2p/segment/segment_registry.h"

namespace peerlane::p2p {

class HostAllocations {
 public:
  // Both outlive it.
  HostAllocations(ProcessContexts& contexts, SegmentRegistry& segments)
      : contexts_(contexts), segments_(segments) {}

  // `numaNode`: nothing for any. Errors: kOutOfMemory, and those of Context::allocate().
  Result<void*> allocate(uint64_t bytes, std::optional<int> numaNode);
  // Nothing: the memory is not of allocate(). kUnavailable: the caller has registered some of it.
  // After an error it is still there, and the caller may try again.
  std::optional<Status> free(void* memory);

 private:
  struct Allocation {
    std::shared_ptr<Context> context;
    Region region;
    SegmentName name;
  };
  Status release(Allocation& allocation);

  ProcessContexts& contexts_;
  SegmentRegistry& segments_;
  Mutex mutex_;
  std::map<void*, Allocation> allocations_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane::p2p
