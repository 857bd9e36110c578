// SPDX-License-Identifier: Apache-2.0
//
// TriggerWords: the words that the programs of one triggered queue store and wait for. The byte map
// is what an executor's table of targets has: the bell at 0, the count at 64, the status at 72, the
// words of peeks from 128 on, the arrivals at 256.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace peerlane {

struct alignas(4096) TriggerWords {       // a page, which devices may pin
  static constexpr uint32_t kPeeks = 16;  // under way at once

  // The executor's store (release) -> the doorbell server's load (acquire).
  alignas(64) std::atomic<uint64_t> bell{0};
  // Doorbell queues: the thread that publishes completions; mapped ones: the executor. Both
  // release -> the executor's wait. kPoison once the queue has failed.
  alignas(64) std::atomic<uint64_t> count{0};
  // 0, or the Code of the queue's failure: stored before the poison.
  std::atomic<uint64_t> status{0};
  // The making of the peek that was passed last with this word: the executor -> the poster.
  alignas(64) std::atomic<uint64_t> passed[kPeeks] = {};
  // Of queues of a device: so many of the awaited arrivals, in their order, have come. The server
  // -> the executor's wait. kPoison as `count`.
  alignas(64) std::atomic<uint64_t> arrived{0};
};
static_assert(sizeof(TriggerWords) == 4096);
static_assert(offsetof(TriggerWords, bell) == 0 && offsetof(TriggerWords, count) == 64 &&
              offsetof(TriggerWords, status) == 72 && offsetof(TriggerWords, passed) == 128 &&
              offsetof(TriggerWords, arrived) == 256);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace peerlane
