// SPDX-License-Identifier: Apache-2.0
//
// StreamLane: what the executor keeps for one stream: a completion word that the stream stores its
// number to after each post, a word in device memory where thread blocks count each other, and what
// must stay until posts have ended. A stream does its work in order, so one word serves all its
// posts. External synchronization required.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <utility>

#include "peerlane/program/stream/pinned_pool.h"

namespace peerlane::stream {

struct StreamLane {
  void* stream = nullptr;                       // CUstream
  uint64_t streamId = 0;                        // the driver's, never used twice
  std::atomic<uint64_t>* completion = nullptr;  // in pinned memory; written by the stream alone
  std::atomic<uint64_t>* fault = nullptr;       // beside it: the last post with a bad block number
  uint32_t* arrivals = nullptr;                 // in device memory
  uint64_t posted = 0;                          // number of the last post
  std::deque<std::pair<uint64_t, PinnedBlock>> held;  // by number of the post that reads it

  bool idle() const { return completion->load(std::memory_order_acquire) >= posted; }
};

}  // namespace peerlane::stream
