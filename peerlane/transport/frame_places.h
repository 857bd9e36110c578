// SPDX-License-Identifier: Apache-2.0
//
// FramePlaces: where the rest of a payload goes, in order. Empty: nowhere, it is dropped. A plain
// value.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "peerlane/os/io_slice.h"
#include "peerlane/os/mappings/nofault_copy.h"
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
  // Copies them there. False: the memory cannot be written.
  bool fill(std::span<std::byte> from) {
    if (at_ == count_ || from.empty()) return true;
    const IoSlice source{from.data(), from.size()};
    const bool isFilled = nofaultWrite(slices(), {&source, 1}) == from.size();
    if (isFilled) advance(from.size());
    return isFilled;
  }

 private:
  std::array<IoSlice, kFrameMaxBlocks> slices_;
  size_t at_ = 0;
  size_t count_ = 0;
};

}  // namespace peerlane
