// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/frame_batch.h"

#include <algorithm>
#include <cstring>

namespace peerlane {

void FrameBatch::clear() {
  frames_ = used_ = count_ = at_ = payloadBytes_ = trailerCount_ = 0;
  pins_.clear();
  isUntouched_ = true;
}

// Returns the room of the table.
std::span<std::byte> FrameBatch::addHead(const Frame& frame, size_t tableBytes) {
  const std::span<std::byte> head =
      std::span(heads_).subspan(used_, kFrameHeaderBytes + tableBytes);
  used_ += head.size();
  ++frames_;
  encodeFrame(frame, head.first<kFrameHeaderBytes>());
  slices_[count_++] = {head.data(), head.size()};
  payloadBytes_ += frame.payload;
  return head.subspan(kFrameHeaderBytes);
}

void FrameBatch::add(Frame frame, std::span<const FrameBlock> table,
                     std::span<const IoSlice> pieces, bool areOurs) {
  frame.trailer = hasTrailers_ && !pieces.empty() && !areOurs;
  encodeBlocks(table, addHead(frame, table.size() * kFrameBlockBytes));
  const size_t bytes = frame.payload - table.size() * kFrameBlockBytes;
  if (areOurs && bytes <= kMostCopied)
    addCopy(pieces, bytes);
  else
    for (const IoSlice& piece : pieces) slices_[count_++] = piece;
  if (frame.trailer) addTrailer(frame);
}

// Behind the header that was added last.
void FrameBatch::addCopy(std::span<const IoSlice> pieces, size_t bytes) {
  for (const IoSlice& piece : pieces) {
    std::memcpy(&heads_[used_], piece.base, piece.bytes);
    used_ += piece.bytes;
  }
  slices_[count_ - 1].bytes += bytes;
}

void FrameBatch::addTrailer(const Frame& frame) {
  const std::span<std::byte> trailer = std::span(heads_).subspan(used_, kFrameTrailerBytes);
  used_ += kFrameTrailerBytes;
  encodeTrailer(Code::kOk, trailer.first<kFrameTrailerBytes>());
  trailers_[trailerCount_++] = {count_, {frame.kind, frame.sequence}};
  slices_[count_++] = {trailer.data(), trailer.size()};
}

std::optional<FrameBatch::Spoiled> FrameBatch::spoil(Code code) {
  // As long as the longest piece of a frame. Never written.
  static std::array<std::byte, kFrameMaxPayload> zeros{};
  const auto trailer =
      std::find_if(trailers_.begin(), trailers_.begin() + static_cast<ptrdiff_t>(trailerCount_),
                   [this](const Trailer& each) { return each.slice >= at_; });
  const bool isPiece = at_ != count_ && !slices().isOurs(slices_[at_]);
  if (!isPiece || trailer == trailers_.begin() + static_cast<ptrdiff_t>(trailerCount_) ||
      slices_[at_].base == zeros.data())
    return std::nullopt;
  // The library's memory can be read: something else is wrong with it.
  const auto pieces = std::span(slices_).subspan(at_, trailer->slice - at_);
  if (std::ranges::any_of(pieces, [this](const IoSlice& piece) { return slices().isOurs(piece); }))
    return std::nullopt;
  for (IoSlice& piece : pieces) piece.base = zeros.data();
  auto* const bytes = static_cast<std::byte*>(slices_[trailer->slice].base);
  encodeTrailer(code, std::span<std::byte, kFrameTrailerBytes>(bytes, kFrameTrailerBytes));
  return trailer->of;
}

void FrameBatch::unpinAfterLast(uint64_t allocation) {
  pins_.push_back({count_, allocation});
}

void FrameBatch::written(size_t bytes, std::vector<uint64_t>& unpinned) {
  if (bytes != 0) isUntouched_ = false;
  at_ += takeBytes(std::span(slices_).subspan(at_, count_ - at_), bytes);
  const auto stillPinned =
      std::find_if(pins_.begin(), pins_.end(), [this](const Pin& pin) { return pin.end > at_; });
  for (auto pin = pins_.begin(); pin != stillPinned; ++pin) unpinned.push_back(pin->allocation);
  pins_.erase(pins_.begin(), stillPinned);
}

void FrameBatch::abandon(std::vector<uint64_t>& unpinned) {
  for (const Pin& pin : pins_) unpinned.push_back(pin.allocation);
  clear();
}

}  // namespace peerlane
