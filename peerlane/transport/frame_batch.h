// SPDX-License-Identifier: Apache-2.0
//
// FrameBatch: the frames that a pipe takes next. Payloads are never copied: the pipe reads them
// where they lie, and may be in the middle of one. External synchronization required (the agent's
// lock). Owned by FrameSender, which fills it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "peerlane/os/io_slice.h"
#include "peerlane/transport/frame_format.h"

namespace peerlane {

class FrameBatch {
 public:
  static constexpr size_t kMostFrames = 32;
  // Header and payload of each frame.
  using Slices = std::array<IoSlice, 2 * kMostFrames>;

  bool isWritten() const { return at_ == count_; }
  bool isFull() const { return count_ == kMostFrames; }
  size_t payloadBytes() const { return payloadBytes_; }

  // Drops what was written. Requires: isWritten().
  void clear() { count_ = at_ = offset_ = payloadBytes_ = 0; }
  // Requires: !isFull().
  void add(const Frame& frame, const std::byte* payload);
  // The pin of `allocation` ends when the frame that was added last is written.
  void unpinAfterLast(uint64_t allocation);

  // The bytes that are left to write.
  std::span<const IoSlice> slices(Slices& room) const;
  // The pipe took `bytes` of slices(). Appends the allocations whose pins end.
  void written(size_t bytes, std::vector<uint64_t>& unpinned);
  // Nothing is written any more: appends all allocations whose pins have not ended.
  void abandon(std::vector<uint64_t>& unpinned);

 private:
  struct Outgoing {
    std::array<std::byte, kFrameHeaderBytes> header;
    const std::byte* payload = nullptr;
    size_t payloadBytes = 0;
    bool unpins = false;
    uint64_t allocation = 0;
  };

  std::array<Outgoing, kMostFrames> frames_;
  size_t count_ = 0;
  size_t at_ = 0;      // the frame that goes on
  size_t offset_ = 0;  // bytes of it already taken
  size_t payloadBytes_ = 0;
};

}  // namespace peerlane
