// SPDX-License-Identifier: Apache-2.0
//
// FreedList: the regions of a context whose memory the program has freed, until somebody takes
// them. So who looks for them walks over these alone, and not over all regions. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/os/fd.h"

namespace peerlane {

struct RegionRecord;
class RegionFrees;

class FreedList {
 public:
  // `bell`, an eventfd, is rung with each region that is added.
  explicit FreedList(Fd bell) : bell_(std::move(bell)) {}

  int bell() const { return bell_.get(); }
  // The watch's thread, once for a region: takes no lock and no memory (FreeWatch::Listener).
  void add(RegionFrees& freed) noexcept;
  // The region is no longer in the list. Requires: no add() of it is to come.
  void remove(RegionFrees& freed);
  // What was added since the last call, and is still there.
  std::vector<std::shared_ptr<RegionRecord>> take();

 private:
  void collect() PEERLANE_REQUIRES(mutex_);

  const Fd bell_;
  std::atomic<RegionFrees*> added_{nullptr};  // linked by RegionFrees::nextFreed_
  Mutex mutex_;
  std::set<RegionFrees*> known_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
