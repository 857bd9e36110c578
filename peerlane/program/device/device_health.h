// SPDX-License-Identifier: Apache-2.0
//
// DeviceHealth: tells a thread that waits for a stream whether the device still works; on a broken
// device the stream would never come to its end. Asks the driver at intervals, not at every look.
// External synchronization required.
#pragma once

#include <chrono>

#include "peerlane/program/device/device_executor.h"

namespace peerlane {

class DeviceHealth {
 public:
  // Also OK while it is too early to ask again.
  Status look(DeviceExecutor& executor) {
    const auto now = std::chrono::steady_clock::now();
    if (now - lastLook_ < kInterval) return Status::ok();
    lastLook_ = now;
    return executor.health();
  }

 private:
  static constexpr std::chrono::milliseconds kInterval{100};
  std::chrono::steady_clock::time_point lastLook_ = std::chrono::steady_clock::now();
};

}  // namespace peerlane
