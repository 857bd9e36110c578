// SPDX-License-Identifier: Apache-2.0
//
// SegmentRegistry: the segments that this process has registered: which memory each of them is, and
// a cache of its region in every context that has needed it. A segment is registered with a context
// when a communicator of that context first needs it. Thread-safe. Owner: P2pProcess; it outlives
// the communicators.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/p2p/segment/segment_name.h"
#include "peerlane/p2p/segment/segment_proof.h"
#include "peerlane/session/context/context.h"

namespace peerlane::p2p {

class SegmentRegistry {
 public:
  // `process`: the token of this process.
  explicit SegmentRegistry(const ProcessToken& process) : process_(process) {}

  const ProcessToken& process() const { return process_; }
  // Registers the memory with `context` at once, so that the caller hears now what is wrong with
  // it.
  Result<SegmentName> add(const std::shared_ptr<Context>& context, std::byte* base, uint64_t bytes,
                          Access access, DeviceKind kind);
  // The region that a peer of `context` may have, if it names the segment and proves that it has
  // the segment's key. kInvalidArgument: no segment has that number, or the proof is wrong.
  Result<Region> regionFor(uint64_t number, const SegmentProof& proof, const AskEnds& ends,
                           const std::shared_ptr<Context>& context);
  // The region of a segment of host memory that holds the range: one that grants `access` if there
  // is one, else one that does not. Nothing: no segment holds the range.
  std::optional<Region> hostRegion(const std::byte* address, uint64_t bytes, Access access,
                                   const std::shared_ptr<Context>& context);
  // A segment other than `name` that has memory in common with it.
  std::optional<SegmentName> overlapping(const SegmentName& name);
  // Waits up to `timeout` until no peer uses it. Nothing: no segment has that name. After
  // an error the segment is still there, and the caller may try again.
  std::optional<Status> remove(const SegmentName& name, std::chrono::nanoseconds timeout);

 private:
  struct Segment {
    SegmentName name;
    bool isLeaving = false;  // no context registers it any more
    struct Registration {
      std::shared_ptr<Context> context;
      Region region;
    };
    std::vector<Registration> registrations;  // one for each context
  };
  Result<Region> regionOf(Segment& segment, const std::shared_ptr<Context>& context);

  const ProcessToken process_;
  std::atomic<size_t> count_{0};  // of segments_, so that a process without any takes no lock
  Mutex mutex_;
  uint64_t next_ PEERLANE_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Segment> segments_ PEERLANE_GUARDED_BY(mutex_);  // by number
};

}  // namespace peerlane::p2p
