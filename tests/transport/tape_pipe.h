// SPDX-License-Identifier: Apache-2.0
//
// TapePipe: a pipe whose two directions are vectors that the test reads, cuts and changes. Takes
// and gives as many bytes at once as the test says.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "peerlane/transport/frame_pipe.h"

namespace peerlane {

struct Tape {
  std::vector<std::byte> written{};
  std::vector<std::byte> toRead{};
  size_t room = std::numeric_limits<size_t>::max();  // bytes that are still taken
  size_t most = std::numeric_limits<size_t>::max();  // bytes of one read
  bool ends = false;                                 // after toRead
  size_t writes = 0;
};

class TapePipe final : public FramePipe {
 public:
  explicit TapePipe(Tape& tape) : tape_(tape) {}
  bool writable() override { return tape_.room != 0; }
  Result<size_t> write(const PipeSlices& from) override {
    ++tape_.writes;
    size_t taken = 0;
    for (const IoSlice& slice : from.slices) {
      const size_t bytes = std::min(slice.bytes, tape_.room);
      const auto* const at = static_cast<const std::byte*>(slice.base);
      tape_.written.insert(tape_.written.end(), at, at + bytes);
      tape_.room -= bytes;
      taken += bytes;
    }
    return taken;
  }
  bool readable() override { return tape_.ends || at_ != tape_.toRead.size(); }
  Result<size_t> read(const PipeSlices& to) override {
    size_t left = std::min(tape_.most, tape_.toRead.size() - at_);
    if (left == 0 && tape_.ends) return Status(Code::kPeerLost, "the tape ended");
    size_t given = 0;
    for (const IoSlice& slice : to.slices) {
      const size_t bytes = std::min(slice.bytes, left);
      std::copy_n(tape_.toRead.begin() + static_cast<ptrdiff_t>(at_), bytes,
                  static_cast<std::byte*>(slice.base));
      at_ += bytes;
      left -= bytes;
      given += bytes;
    }
    return given;
  }
  void refresh() override {}
  void close() override {}

 private:
  Tape& tape_;
  size_t at_ = 0;
};

}  // namespace peerlane
