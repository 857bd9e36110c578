// SPDX-License-Identifier: Apache-2.0
//
// FramePlaces: where the rest of a payload goes, in order. Empty: nowhere, it is dropped. A plain
// value.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "peerlane/os/io_slice.h"
#include "peerlane/transport/frame_format.h"

namespace peerlane {

class FramePlaces {
 public:
  void clear() { at_ = count_ = 0; }
  // Requires: fewer than kFrameMaxBlocks were added since clear(); `bytes` is not 0.
  void add(std::byte* to, size_t bytes) { slices_[count_++] = {to, bytes}; }
  std::span<const IoSlice> slices() const { return std::span(slices_).subspan(at_, count_ - at_); }

  // `bytes` more have got there.
  void advance(size_t bytes) {
    at_ += takeBytes(std::span(slices_).subspan(at_, count_ - at_), bytes);
  }
  // Copies them there.
  void fill(std::span<const std::byte> from) {
    for (size_t i = at_; !from.empty() && i < count_; ++i) {
      const size_t part = std::min(from.size(), slices_[i].bytes);
      std::memcpy(slices_[i].base, from.data(), part);
      advance(part);
      from = from.subspan(part);
    }
  }

 private:
  std::array<IoSlice, kFrameMaxBlocks> slices_;
  size_t at_ = 0;
  size_t count_ = 0;
};

}  // namespace peerlane
