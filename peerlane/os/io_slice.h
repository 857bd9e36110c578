// SPDX-License-Identifier: Apache-2.0
//
// IoSlice: one contiguous piece of memory for the scatter/gather calls of this floor. A plain value
// that has the layout of the system's iovec, so lists of it are handed to the kernel without a
// copy.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace peerlane {

// `bytes` bytes at `base`. For another process' memory `base` is an address over there, never read
// here.
struct IoSlice {
  void* base = nullptr;
  size_t bytes = 0;
};

// `bytes` more of `slices` are done: returns how many of them are done whole, and cuts that off the
// front of the next one.
inline size_t takeBytes(std::span<IoSlice> slices, size_t bytes) {
  size_t done = 0;
  while (bytes != 0) {
    IoSlice& slice = slices[done];
    const size_t part = std::min(bytes, slice.bytes);
    slice = {static_cast<std::byte*>(slice.base) + part, slice.bytes - part};
    if (slice.bytes != 0) break;
    bytes -= part;
    ++done;
  }
  return done;
}

// A place in a list of slices, which stays as it is.
class SliceCursor {
 public:
  explicit SliceCursor(std::span<const IoSlice> slices, size_t done = 0) : slices_(slices) {
    advance(done);
  }

  bool isEnd() const { return slices_.empty(); }
  // What is left of the slice that goes on. Requires: !isEnd().
  IoSlice front() const {
    return {static_cast<std::byte*>(slices_.front().base) + done_, slices_.front().bytes - done_};
  }
  void advance(size_t bytes) {
    done_ += bytes;
    while (!slices_.empty() && done_ >= slices_.front().bytes) {
      done_ -= slices_.front().bytes;
      slices_ = slices_.subspan(1);
    }
  }
  // Moves past the next bytes, `most` or less, of slices for which `goesOn(front())` is true.
  // Returns them as slices in `room`, none of which is empty; `bytes` has their sum.
  template <typename GoesOn>
  std::span<IoSlice> takeWhile(const GoesOn& goesOn, size_t most, std::span<IoSlice> room,
                               size_t& bytes) {
    size_t count = 0;
    for (bytes = 0; !isEnd() && count != room.size() && bytes != most && goesOn(front());) {
      const IoSlice slice = front();
      const size_t part = std::min(slice.bytes, most - bytes);
      room[count++] = {slice.base, part};
      bytes += part;
      advance(part);
    }
    return room.first(count);
  }
  // The same without moving, and of all slices.
  std::span<IoSlice> next(size_t most, std::span<IoSlice> room, size_t& bytes) const {
    SliceCursor ahead = *this;
    return ahead.takeWhile([](const IoSlice&) { return true; }, most, room, bytes);
  }

 private:
  std::span<const IoSlice> slices_;
  size_t done_ = 0;  // of the first one
};

// The kernel takes at most this many slices per call.
inline constexpr size_t kMaxIoSlices = 1024;

}  // namespace peerlane
