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
#include "peerlane/os/mappings/nofault_copy.h"
#include "peerlane/transport/frame_format.h"

namespace peerlane {

class FramePlaces {
 public:
  void clear() {
    at_ = count_ = 0;
    areOurs_ = false;
  }
  // All of them are memory of the library; else any may be the program's, which may be gone.
  void setOurs() { areOurs_ = true; }
  bool areOurs() const { return areOurs_; }
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
    if (areOurs_) {
      copyToOurs(from);
      return true;
    }
    const IoSlice source{from.data(), from.size()};
    const bool isFilled = nofaultWrite(slices(), {&source, 1}) == from.size();
    if (isFilled) advance(from.size());
    return isFilled;
  }

 private:
  void copyToOurs(std::span<const std::byte> from) {
    while (!from.empty()) {
      const IoSlice& slice = slices_[at_];
      const size_t part = std::min(slice.bytes, from.size());
      std::memcpy(slice.base, from.data(), part);
      advance(part);
      from = from.subspan(part);
    }
  }

  std::array<IoSlice, kFrameMaxBlocks> slices_;
  size_t at_ = 0;
  size_t count_ = 0;
  bool areOurs_ = false;
};

}  // namespace peerlane
