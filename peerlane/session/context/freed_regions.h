// SPDX-License-Identifier: Apache-2.0
//
// FreedRegions: hears at once of cached host memory that the program has freed (RegionFrees), and
// has devices let go of its pages. Owner: RegionLife.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/region_table.h"
#include "peerlane/os/event_loop.h"
#include "peerlane/progress/progress.h"

namespace peerlane {

class FreedRegions {
 public:
  using Record = std::shared_ptr<RegionRecord>;

  // `revoke`, on the progress thread: of a region that peers reach. `owner` keeps this alive.
  FreedRegions(Progress& progress, RegionTable& regions, std::weak_ptr<void> owner,
               std::function<void(const Record&)> revoke)
      : progress_(progress),
        regions_(regions),
        owner_(std::move(owner)),
        revoke_(std::move(revoke)) {}

  // Before anybody finds the region. Does nothing for memory of devices. Thread: any. Errors:
  // kUnavailable (no descriptor is left).
  Status hear(const RegionRecord& record);
  // Nothing is heard from now on. Progress thread.
  void stop();

 private:
  void begin(const std::shared_ptr<FreedList>& list);
  void letGo();

  Progress& progress_;
  RegionTable& regions_;
  const std::weak_ptr<void> owner_;
  const std::function<void(const Record&)> revoke_;
  Timer again_;  // progress thread, as the next four
  std::chrono::milliseconds nextLook_{1};
  std::vector<std::weak_ptr<RegionRecord>> freed_;  // heard of, and still used
  Watch watch_;
  bool isOver_ = false;
  Mutex mutex_;
  // Null until there is a region that may need it; then it stays.
  std::shared_ptr<FreedList> list_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
