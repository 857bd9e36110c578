// SPDX-License-Identifier: Apache-2.0
//
// StreamLane: what the executor keeps for one stream: a completion word that the stream stores
// numbers to, words in device memory for its launches, and what must stay until posts have ended. A
// stream does its work in order, so one word serves all its posts. External synchronization
// required.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <utility>

#include "peerlane/program/device/device_executor.h"
#include "peerlane/program/stream/message/list_room.h"
#include "peerlane/program/stream/message/stream_turn.h"
#include "peerlane/program/stream/pools/pinned_pool.h"

namespace peerlane::stream {

struct StreamLane {
  void* stream = nullptr;                       // CUstream
  uint64_t streamId = 0;                        // the driver's, never used twice
  bool isOwn = false;                           // one of the library's streams
  std::atomic<uint64_t>* completion = nullptr;  // in pinned memory; written by the stream alone
  // Where post n with block numbers in device memory says that one was out of range: at n %
  // kFaults, so that none is blamed for those under way behind it, but for one that is as many
  // posts ahead and has not been told of its end yet. Made for the first of them.
  static constexpr uint64_t kFaults = 1024;
  std::atomic<uint64_t>* faults = nullptr;
  StreamWords words;
  uint64_t posted = 0;  // the last number that was or will be stored to `completion`
  DevicePost last;      // the last post, whatever word tells its end
  std::deque<std::pair<DevicePost, PinnedBlock>> held;  // and the posts that read them
  std::deque<std::pair<DevicePost, ListRoom>> rooms;    // of lists

  bool idle() const { return last.ended(); }
  // The stream was told to store the next number to its completion word.
  DevicePost tellsEnd(const std::atomic<uint64_t>* fault = nullptr) {
    last = {completion, ++posted, fault};
    return last;
  }
};

}  // namespace peerlane::stream
