// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/frame_requests.h"

#include <algorithm>
#include <string>

namespace peerlane {

uint64_t FrameRequests::add(AgentWork& work, std::span<const Piece> pieces, uint64_t bytes) {
  open_.push_back({.sequence = next_, .work = &work, .left = pieces, .bytes = bytes});
  return next_++;
}

Status FrameRequests::destination(const Frame& frame, FramePlaces& places) {
  places.clear();
  if (open_.empty() || open_.front().sequence != frame.sequence)
    return Status(Code::kCorrupt, "get data of request " + std::to_string(frame.sequence) +
                                      ", which is not the oldest open one");
  Request& request = open_.front();
  if (frame.offset != request.arrived || frame.payload > request.bytes - request.arrived)
    return Status(Code::kCorrupt, "get data at offset " + std::to_string(frame.offset) + ", " +
                                      std::to_string(frame.payload) + " bytes; accepted: offset " +
                                      std::to_string(request.arrived) + ", at most " +
                                      std::to_string(request.bytes - request.arrived) + " bytes");
  if (frame.last != (request.arrived + frame.payload == request.bytes))
    return Status(Code::kCorrupt, "get data of request " + std::to_string(frame.sequence) +
                                      " says last at the wrong place");
  request.arrived += frame.payload;
  if (request.abandoned != Code::kOk) return {};
  for (uint64_t bytes = frame.payload; bytes != 0;) {
    const Piece& piece = request.left.front();
    const uint64_t part = std::min(bytes, piece.bytes - request.offset);
    if (part != 0) places.add(piece.local + request.offset, part);
    request.offset += part;
    bytes -= part;
    if (request.offset != piece.bytes) break;
    request.left = request.left.subspan(1);
    request.offset = 0;
  }
  return {};
}

void FrameRequests::spoil(uint64_t request, Code code) {
  if (open_.empty() || open_.front().sequence != request) return;
  if (open_.front().spoiled == Code::kOk) open_.front().spoiled = code;
}

Result<FrameRequests::Part> FrameRequests::end(uint64_t request, Code code) {
  const auto found = std::lower_bound(
      open_.begin(), open_.end(), request,
      [](const Request& open, uint64_t sequence) { return open.sequence < sequence; });
  const bool isOpen = found != open_.end() && found->sequence == request;
  if (!isOpen || (found != open_.begin() && found->abandoned == Code::kOk))
    return Status(Code::kCorrupt, "answer to get request " + std::to_string(request) +
                                      ", which is not the oldest open one");
  // Data of an abandoned one may have been dropped.
  const Code first = found->abandoned != Code::kOk ? found->abandoned : found->spoiled;
  const Part part{found->work, first != Code::kOk ? first : code};
  open_.erase(found);
  return part;
}

std::optional<FrameRequests::Range> FrameRequests::abandon(const AgentWork& work, Code code) {
  std::optional<Range> range;
  for (Request& request : open_) {
    if (request.work != &work || request.abandoned != Code::kOk) continue;
    request.abandoned = code;
    if (!range) range = Range{request.sequence, request.sequence};
    range->last = request.sequence;  // the requests of one work are neighbours
  }
  mustLetGo_ = mustLetGo_ || range;
  return range;
}

bool FrameRequests::isAbandoned(uint64_t request) const {
  return !open_.empty() && open_.front().sequence == request &&
         open_.front().abandoned != Code::kOk;
}

}  // namespace peerlane
