// SPDX-License-Identifier: Apache-2.0
//
// ImportedSegments: the segments of other processes that this process has imported, by their names
// and by the addresses that they have there. How one is reached is not known here: each
// communicator asks its other side (RemoteSegmentCache). Thread-safe. Owner: P2pProcess; it
// outlives the communicators.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/p2p/result_code.h"
#include "peerlane/p2p/segment/segment_name.h"

namespace peerlane::p2p {

class ImportedSegments {
 public:
  // Adding a name again does nothing. kInvalidArgument: another segment of the same process and
  // number is there.
  Status add(const SegmentName& name);
  // False: it was not there.
  bool remove(const SegmentName& name);
  std::vector<SegmentName> of(const ProcessToken& process) const;
  // The segment of `process` that holds the range and grants `access`. HCCL_E_NOT_FOUND (no segment
  // holds the address) and HCCL_E_PARA (too long, or rights), saying what there is.
  Answer find(const ProcessToken& process, uint64_t address, uint64_t bytes, Access access,
              SegmentName& found) const;

 private:
  struct OfProcess {
    std::map<uint64_t, SegmentName> byNumber;
    std::multimap<uint64_t, const SegmentName*> byAddress;  // into byNumber
  };
  Answer noneHolds(const ProcessToken& process, uint64_t address, uint64_t bytes) const
      PEERLANE_REQUIRES_SHARED(mutex_);

  mutable SharedMutex mutex_;
  std::map<ProcessToken, OfProcess> imports_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane::p2p
