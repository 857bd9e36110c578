// SPDX-License-Identifier: Apache-2.0
//
// FrameReplies: the peer's get requests that this side of a frame agent has not answered, in the
// order of their numbers. Trusts no number of the peer. External synchronization required (the
// agent's lock).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/os/io_slice.h"
#include "peerlane/transport/frame_batch.h"

namespace peerlane {

// The answer to one. The blocks are pinned unless it is refused.
struct GetReply {
  uint64_t request = 0;
  uint64_t allocation = 0;
  IoSlice block{};               // the one that goes on
  std::vector<IoSlice> later{};  // of a list: those after it
  size_t next = 0;               // in `later`
  uint64_t bytes = 0;            // of all
  uint64_t sent = 0;
  Code refusal = Code::kOk;
  Code spoiled = Code::kOk;  // a block could not be read, when others had been sent
};

class FrameReplies {
 public:
  bool isEmpty() const { return replies_.empty() && dropped_.empty(); }
  // Requires: its request came after those before it. Errors: kCorrupt when the peer has more
  // requests open than it may.
  Status add(GetReply reply);
  // The peer cancelled its requests `first` to `last`: data of them that is not yet cut is not
  // sent, and they are answered before the others.
  void drop(uint64_t first, uint64_t last);
  // A block of the request whose data is being cut could not be read: no more of it is sent, and it
  // is refused with `code`. No effect on one that is completely cut.
  void spoil(uint64_t request, Code code);
  // Cuts the next frame; false: there is none. Requires: !batch.isFull().
  bool addFrame(FrameBatch& batch);
  // Nothing is answered any more: appends the allocations whose pins end.
  void endAll(std::vector<uint64_t>& unpinned);

 private:
  void addData(FrameBatch& batch, GetReply& reply);

  std::deque<GetReply> replies_;
  std::deque<GetReply> dropped_;  // cancelled by the peer, or spoiled; not answered
};

}  // namespace peerlane
