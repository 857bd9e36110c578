// SPDX-License-Identifier: Apache-2.0
//
// TurnRight: the right to touch a thing that several threads use for a moment each. A thread that
// finds it taken spins, because its holder makes no system call of ours and soon lets go; so the
// posting path takes no lock of the system's. One exception: before it applies a mailed word, the
// holder waits for a flush of a GPU that does not order the writes of NICs (DeviceWrites).
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "peerlane/core/device_code.h"
#include "peerlane/core/mutex.h"

namespace peerlane {

class PEERLANE_CAPABILITY("right") TurnRight {
 public:
  TurnRight() = default;
  TurnRight(const TurnRight&) = delete;
  TurnRight& operator=(const TurnRight&) = delete;

  void take() PEERLANE_ACQUIRE() {
    for (uint32_t looks = 1; isTaken_.exchange(true, std::memory_order_acquire); ++looks)
      if (looks % kLooksPerYield == 0)
        std::this_thread::yield();  // its holder may need this core
      else
        cpuRelax();
  }
  void letGo() PEERLANE_RELEASE() { isTaken_.store(false, std::memory_order_release); }

 private:
  static constexpr uint32_t kLooksPerYield = 64;
  std::atomic<bool> isTaken_{false};
};

// Holds the right as long as it lives.
class PEERLANE_SCOPED_CAPABILITY TurnHolder {
 public:
  explicit TurnHolder(TurnRight& right) PEERLANE_ACQUIRE(right) : right_(right) { right_.take(); }
  ~TurnHolder() PEERLANE_RELEASE() { right_.letGo(); }
  TurnHolder(const TurnHolder&) = delete;
  TurnHolder& operator=(const TurnHolder&) = delete;

 private:
  TurnRight& right_;
};

}  // namespace peerlane
