// SPDX-License-Identifier: Apache-2.0
//
// FrameRequests: the get requests that this side of a frame agent has sent and whose answers have
// not come, in the order of their numbers. Trusts no number of the peer. External synchronization
// required (the agent's lock).
//
// A request that was abandoned stays until the peer has answered it, for both sides count the same
// requests; its work ends before, and data that still come are dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include "peerlane/core/status.h"
#include "peerlane/program/model/mailbox.h"
#include "peerlane/transport/frame_format.h"
#include "peerlane/transport/frame_places.h"

namespace peerlane {

class FrameRequests {
 public:
  struct Range {
    uint64_t first = 0;
    uint64_t last = 0;
  };
  // A part of a work that has ended.
  struct Part {
    AgentWork* work = nullptr;  // null: it ended before
    Code code = Code::kOk;
  };

  bool isEmpty() const { return open_.empty(); }
  // Of the oldest one, and of no other.
  uint64_t bytesToCome() const {
    return open_.empty() ? 0 : open_.front().bytes - open_.front().arrived;
  }
  bool isFull() const { return open_.size() >= kFrameMaxRequests; }
  // The number of a new request for `pieces` of the work, at most kFrameMaxBlocks that are not
  // empty, with `bytes` in all.
  uint64_t add(AgentWork& work, std::span<const Piece> pieces, uint64_t bytes);
  // Sets `places` to where the payload of `frame` (kGetData) belongs; counted as arrived from then
  // on. Empty: nowhere, its request was abandoned. Errors: kCorrupt.
  Status destination(const Frame& frame, FramePlaces& places);
  // The oldest request ends with `code`, whatever end() is told.
  void spoil(uint64_t request, Code code);
  // The oldest request has ended with `code`, or an abandoned one, which may overtake older ones.
  // Errors: kCorrupt.
  Result<Part> end(uint64_t request, Code code);

  // The requests of `work`, of which the peer must be told; none: it has none that are not
  // abandoned yet.
  std::optional<Range> abandon(const AgentWork& work, Code code);
  // Of the request whose data comes now, which is the oldest.
  bool isAbandoned(uint64_t request) const;
  // Calls ended(Part) for each abandoned request, once.
  template <typename Ended>
  void letGo(const Ended& ended) {
    if (!mustLetGo_) return;
    mustLetGo_ = false;
    for (Request& request : open_) {
      if (request.work == nullptr || request.abandoned == Code::kOk) continue;
      const Part part{request.work, request.abandoned};
      request.work = nullptr;
      ended(part);
    }
  }

  // Forgets all, and calls ended(AgentWork&) once for each work.
  template <typename Ended>
  void endAll(const Ended& ended) {
    AgentWork* last = nullptr;
    for (const Request& request : open_) {
      if (request.work == nullptr || request.work == last) continue;
      last = request.work;  // the requests of one work are neighbours
      ended(*last);
    }
    open_.clear();
    mustLetGo_ = false;
  }

 private:
  struct Request {
    uint64_t sequence = 0;
    AgentWork* work = nullptr;    // null: it has ended
    std::span<const Piece> left;  // of the work: alive until that has ended
    uint64_t offset = 0;          // bytes of the first of them that have arrived
    uint64_t bytes = 0;
    uint64_t arrived = 0;
    Code abandoned = Code::kOk;  // the peer was told, or will be
    Code spoiled = Code::kOk;
  };

  std::deque<Request> open_;
  uint64_t next_ = 1;
  bool mustLetGo_ = false;  // some are abandoned, and their works have not ended
};

}  // namespace peerlane
