// SPDX-License-Identifier: Apache-2.0
//
// PieceNames: how a list of places in regions is written for a peer's device: first the names of
// the regions, {u64 allocation, generation} each, directly followed by one word for each place,
// which has the number of the region in the high 16 bits and the offset in it. So a device looks up
// each region once, however many places lie in it. Plain numbers.
#pragma once

#include <cstdint>

#include "peerlane/core/device_code.h"

namespace peerlane {

struct PieceNames {
  static constexpr uint32_t kMostRegions = 256;  // a device knows no more of one peer
  static constexpr uint32_t kMostPieces = 4096;
  static constexpr uint32_t kNameBytes = 16;
  static constexpr uint32_t kPlaceBytes = 8;
  static constexpr uint32_t kMostBytes = kMostRegions * kNameBytes + kMostPieces * kPlaceBytes;
  static constexpr uint32_t kRegionBit = 48;

  PEERLANE_DEVICE static constexpr uint64_t place(uint64_t region, uint64_t offset) {
    return region << kRegionBit | offset;
  }
  PEERLANE_DEVICE static constexpr uint64_t regionOf(uint64_t place) { return place >> kRegionBit; }
  PEERLANE_DEVICE static constexpr uint64_t offsetOf(uint64_t place) {
    return place & ((uint64_t{1} << kRegionBit) - 1);
  }
};

}  // namespace peerlane
