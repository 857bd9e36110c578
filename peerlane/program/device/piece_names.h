// SPDX-License-Identifier: Apache-2.0
//
// PieceNames: how a list of places in regions is written down for a peer's device: the regions by
// their names, {u64 allocation, generation} each, and right behind them a word for each place:
// which of these regions, in the high 16 bits, and the offset in it. So a device looks up a region
// once, however many places lie in it. Plain numbers.
#pragma once

#include <cstdint>

#include "peerlane/core/device_code.h"

namespace peerlane {

struct PieceNames {
  static constexpr uint32_t kMostRegions = 256;  // more of one peer are not known to a device
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
