// SPDX-License-Identifier: Apache-2.0
//
// SubmissionQueue: what an executor keeps for one stream: a completion word to which the stream
// stores numbers, words in device memory for its launches, and the memory that must stay until
// posts have ended. A stream does its work in order, so one word serves all its posts. The executor
// owns it. External synchronization required.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <utility>

#include "peerlane/program/device/device_executor.h"
#include "peerlane/program/stream/message/list_room.h"
#include "peerlane/program/stream/message/stream_shapes.h"
#include "peerlane/program/stream/pools/pinned_pool.h"

namespace peerlane::stream {

struct SubmissionQueue {
  void* stream = nullptr;                       // CUstream
  uint64_t streamId = 0;                        // the driver's, never used twice
  bool isOwn = false;                           // one of the library's streams
  std::atomic<uint64_t>* completion = nullptr;  // in pinned memory; written by the stream alone
  // The fault words: post n stores to word n % kFaults if one of its block numbers in device memory
  // was out of range. So a post is blamed for none of the posts under way after it but the one
  // kFaults later, and for that one only if the caller has not yet asked for the status of the
  // earlier post. Allocated for the first post with block numbers in device memory.
  static constexpr uint64_t kFaults = 1024;
  std::atomic<uint64_t>* faults = nullptr;
  StreamWords words;
  uint64_t posted = 0;  // the last number that the stream has stored or will store to `completion`
  DevicePost last;      // the last post, whichever completion word it uses
  std::deque<std::pair<DevicePost, PinnedBlock>> held;  // blocks, and the posts that read them
  std::deque<std::pair<DevicePost, ListRoom>> rooms;    // of lists

  bool idle() const { return last.ended(); }
  // Call after the store of the next number to the completion word was enqueued.
  DevicePost completionEnqueued(const std::atomic<uint64_t>* fault = nullptr) {
    last = {completion, ++posted, fault};
    return last;
  }
};

}  // namespace peerlane::stream
