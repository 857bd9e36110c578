// SPDX-License-Identifier: Apache-2.0
//
// DeviceHealth: whether a device still works, for whoever waits for a stream that would never come
// to its end on a broken one. Asks the driver now and then, not at every look. External
// synchronization required.
#pragma once

#include <chrono>

#include "peerlane/program/device/device_executor.h"

namespace peerlane {

class DeviceHealth {
 public:
  // OK, too, where it is not time to ask again.
  Status look(DeviceExecutor& executor) {
    const auto now = std::chrono::steady_clock::now();
    if (now - looked_ < kInterval) return Status::ok();
    looked_ = now;
    return executor.health();
  }

 private:
  static constexpr std::chrono::milliseconds kInterval{100};
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
};

}  // namespace peerlane
