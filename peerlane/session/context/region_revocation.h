// SPDX-License-Identifier: Apache-2.0
//
// RegionRevocation: a region on its way out, or revoked, shared by the calls that wait for it.
// RegionLife changes it. Thread-safe, but for what is the progress thread's.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "peerlane/memory/region_table.h"
#include "peerlane/os/event_loop.h"

namespace peerlane {

struct RegionRevocation {
  // Why a region is let go of. kFreed: found by a look at GPU memory, or watched.
  enum class Cause : uint8_t { kUnregistered, kInvalidated, kFreed };

  std::shared_ptr<RegionRecord> record;
  Cause cause{};  // the first one
  // Those that have not confirmed, and 1 until all were asked. The progress thread writes. Until it
  // is 0 only the thread that began takes the region out.
  std::atomic<size_t> holders{1};
  std::atomic<bool> isTakenBack{false};  // by its user: it may leave the table
  std::atomic<bool> letGo{false};        // nothing reaches it, but for exports of links
  std::atomic<bool> gone{false};         // from the table
  std::atomic<bool> asked{false};        // the progress thread was, to take the region out
  std::atomic<bool> unpinned{false};     // no device reaches it
  std::atomic<bool> unpinning{false};    // written by the thread that may take the region out
  bool quarantined = false;              // progress thread
  Timer again{};                         // of the next look; progress thread

  // One of the flags above that a call may wait for.
  using Goal = std::atomic<bool> RegionRevocation::*;
  bool has(Goal goal) const { return (this->*goal).load(std::memory_order_acquire); }
  bool isFree() const {
    return holders.load(std::memory_order_acquire) == 0 && record->gate.drained();
  }
};

}  // namespace peerlane
