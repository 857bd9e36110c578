// SPDX-License-Identifier: Apache-2.0
//
// FrameBatch: the frames that a pipe takes next. Payloads are not copied, but for short ones of the
// library: the pipe reads them where they lie, and may be in the middle of one. External
// synchronization required (the agent's lock). Owned by FrameSender, which fills it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "peerlane/os/io_slice.h"
#include "peerlane/transport/frame_format.h"
#include "peerlane/transport/frame_pipe.h"

namespace peerlane {

class FrameBatch {
 public:
  static constexpr size_t kMostFrames = 32;

  // `hasTrailers`: the peer knows them, so each frame with pieces has one.
  explicit FrameBatch(bool hasTrailers) : hasTrailers_(hasTrailers) {}

  bool isWritten() const { return at_ == count_; }
  // There may be no room for another frame.
  bool isFull() const {
    return frames_ == kMostFrames || count_ + kSlicesOfFrame > kMostSlices ||
           used_ + kHeadOfFrame > kHeadBytes;
  }
  // Nothing of it is written yet.
  bool isUntouched() const { return isUntouched_; }
  size_t payloadBytes() const { return payloadBytes_; }

  // Drops what was written. Requires: isWritten().
  void clear();
  // `table`: of a list, at the beginning of the payload. The rest of the payload lies in `pieces`,
  // kFrameMaxBlocks at most; `areOurs`: that is memory of the library, which can be read in any
  // case. Requires: !isFull().
  void add(Frame frame, std::span<const FrameBlock> table = {},
           std::span<const IoSlice> pieces = {}, bool areOurs = false);
  // The pin of `allocation` ends when the frame that was added last is written.
  void unpinAfterLast(uint64_t allocation);

  // The bytes that are left to write: what lies in heads_ is ours.
  PipeSlices slices() const {
    return {std::span(slices_).subspan(at_, count_ - at_), std::span(heads_)};
  }
  // The piece at the front of slices() cannot be read: zeros go out for it and for the pieces
  // behind it in its frame, whose trailer says `code`. Returns which frame that is: its kind and
  // number. Null: it has no trailer, or the front is no piece, or is such zeros.
  struct Spoiled {
    FrameKind kind = FrameKind::kPut;
    uint64_t sequence = 0;
  };
  std::optional<Spoiled> spoil(Code code);
  // The pipe took `bytes` of slices(). Appends the allocations whose pins end.
  void written(size_t bytes, std::vector<uint64_t>& unpinned);
  // Nothing is written any more: appends all allocations whose pins have not ended.
  void abandon(std::vector<uint64_t>& unpinned);

 private:
  // A payload of the library, of so many bytes, goes with its header: as a piece of its own it
  // would be taken for the program's.
  static constexpr size_t kMostCopied = 256;
  static constexpr size_t kHeadOfFrame =
      kFrameHeaderBytes + kFrameMaxBlocks * kFrameBlockBytes + kMostCopied + kFrameTrailerBytes;
  static constexpr size_t kHeadBytes = 16 * 1024;
  static constexpr size_t kSlicesOfFrame = 2 + kFrameMaxBlocks;  // its head, payload and trailer
  static constexpr size_t kMostSlices = 768;
  static_assert(kMostSlices <= kMaxIoSlices);
  struct Pin {
    size_t end = 0;  // slices until it ends
    uint64_t allocation = 0;
  };

  struct Trailer {
    size_t slice = 0;
    Spoiled of{};  // its frame
  };

  std::span<std::byte> addHead(const Frame& frame, size_t tableBytes);
  void addCopy(std::span<const IoSlice> pieces, size_t bytes);
  void addTrailer(const Frame& frame);

  const bool hasTrailers_;
  std::array<std::byte, kHeadBytes> heads_;  // headers, tables, trailers, payloads of the library
  std::array<IoSlice, kMostSlices> slices_;
  std::vector<Pin> pins_;
  std::array<Trailer, kMostFrames> trailers_;
  size_t trailerCount_ = 0;
  size_t frames_ = 0;
  size_t used_ = 0;   // of heads_
  size_t count_ = 0;  // of slices_
  size_t at_ = 0;     // the slice that goes on
  size_t payloadBytes_ = 0;
  bool isUntouched_ = true;
};

}  // namespace peerlane
