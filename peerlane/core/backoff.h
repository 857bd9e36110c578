// SPDX-License-Identifier: Apache-2.0
//
// How a thread polls: a bounded number of rounds with a pause, then rounds that offer the core to
// other threads. It does not know what is polled, reads no clock and never sleeps; those belong to
// the caller. External synchronization required: one per waiting loop, on its stack.
#pragma once

#include <sched.h>

#include <cstdint>

#include "peerlane/core/device_code.h"

namespace peerlane {

class SpinWait {
 public:
  // About 10 us of pauses on current cores: longer than a cache-line exchange, shorter than a time
  // slice.
  static constexpr uint32_t kDefaultTurns = 256;

  explicit SpinWait(uint32_t turns = kDefaultTurns) : turns_(turns) {}

  // To be called between two polls.
  void pause() {
    if (used_ < turns_) {
      ++used_;
      cpuRelax();
    } else {
      ::sched_yield();
    }
  }
  // True when the next pause() gives the core away.
  bool yields() const { return used_ >= turns_; }
  // There was progress: spin again.
  void reset() { used_ = 0; }

 private:
  uint32_t turns_;
  uint32_t used_ = 0;
};

}  // namespace peerlane
