// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/frame_batch.h"

#include <algorithm>

namespace peerlane {
namespace {

IoSlice sliceOf(const std::byte* from, size_t bytes) {
  return {const_cast<std::byte*>(from), bytes};  // the pipe only reads
}

}  // namespace

void FrameBatch::add(const Frame& frame, const std::byte* payload) {
  Outgoing& out = frames_[count_++];
  encodeFrame(frame, out.header);
  out.payload = payload;
  out.payloadBytes = frame.payload;
  out.unpins = false;
  payloadBytes_ += frame.payload;
}

void FrameBatch::unpinAfterLast(uint64_t allocation) {
  frames_[count_ - 1].unpins = true;
  frames_[count_ - 1].allocation = allocation;
}

std::span<const IoSlice> FrameBatch::slices(Slices& room) const {
  size_t count = 0;
  size_t skip = offset_;
  for (size_t i = at_; i < count_; ++i, skip = 0) {
    const Outgoing& frame = frames_[i];
    const size_t header = std::min(skip, kFrameHeaderBytes);
    if (header < kFrameHeaderBytes)
      room[count++] = sliceOf(frame.header.data() + header, kFrameHeaderBytes - header);
    skip -= header;
    if (skip < frame.payloadBytes)
      room[count++] = sliceOf(frame.payload + skip, frame.payloadBytes - skip);
  }
  return std::span(room).first(count);
}

void FrameBatch::written(size_t bytes, std::vector<uint64_t>& unpinned) {
  while (at_ < count_) {
    const Outgoing& frame = frames_[at_];
    const size_t left = kFrameHeaderBytes + frame.payloadBytes - offset_;
    if (bytes < left) {
      offset_ += bytes;
      return;
    }
    bytes -= left;
    if (frame.unpins) unpinned.push_back(frame.allocation);
    ++at_;
    offset_ = 0;
  }
}

void FrameBatch::abandon(std::vector<uint64_t>& unpinned) {
  for (size_t i = at_; i < count_; ++i)
    if (frames_[i].unpins) unpinned.push_back(frames_[i].allocation);
  clear();
}

}  // namespace peerlane
