// SPDX-License-Identifier: Apache-2.0
//
// GridAxis: places at equal distances in a region, and the number of the place at an offset. Plain
// value.
#pragma once

#include <bit>
#include <cstdint>

namespace peerlane {

class GridAxis {
 public:
  // Place i is at base + i * stride. Requires: stride > 0.
  GridAxis(uint64_t base, uint64_t stride)
      : base_(base),
        stride_(stride),
        shift_(std::countr_zero(stride)),
        inverse_(inverseOf(stride >> shift_)) {}

  uint64_t base() const { return base_; }
  uint64_t stride() const { return stride_; }

  // One multiplication. An offset that is no place gives a number above (2^64 - 1) / stride, which
  // no place has: the product with the inverse of the stride's odd part is the quotient where the
  // division has no rest, and above all quotients where it has one (Hacker's Delight, 10-17).
  uint64_t numberOf(uint64_t offset) const {
    return std::rotr((offset - base_) * inverse_, shift_);
  }

 private:
  // Modulo 2^64. Each step doubles the number of bits that are right.
  static uint64_t inverseOf(uint64_t odd) {
    uint64_t inverse = odd;  // three bits
    for (int bits = 3; bits < 64; bits *= 2) inverse *= 2 - odd * inverse;
    return inverse;
  }

  uint64_t base_;
  uint64_t stride_;
  int shift_;
  uint64_t inverse_;
};

}  // namespace peerlane
