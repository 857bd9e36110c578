// SPDX-License-Identifier: Apache-2.0
//
// LinkRails: the devices (rails) over which one context has links of one family, and how far each
// is from memory of this side. Links that share such a table are as good as each other, so the
// distance decides which one takes a transfer. Made before the first of them, immutable afterwards.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/memory/device.h"

namespace peerlane {

struct LinkRails {
  struct Distance {
    uint32_t steps = 0;    // only compared
    std::string reason{};  // "pcie-switch/3 from cuda0"
  };
  struct Rail {
    std::string device;  // "mlx5_0:1"
    Distance fromHost{};
    std::vector<std::pair<Device, Distance>> fromDevices{};  // each GPU of the context

    const Distance& from(const Device& place) const {
      for (const auto& [gpu, distance] : fromDevices)
        if (gpu == place) return distance;
      return fromHost;
    }
  };
  std::vector<Rail> rails;
};

}  // namespace peerlane
