// SPDX-License-Identifier: Apache-2.0
//
// CounterWords: which stream adds to which word of which counter line
// (program/words/counter_line.h), and the running totals. A word has one writer at a time. Another
// stream gets a word after the last post of its former writer has ended, or else waits for that
// end. External synchronization required.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "peerlane/program/device/counter_lender.h"
#include "peerlane/program/stream/pools/posting_lock.h"
#include "peerlane/program/stream/queues/submission_queue.h"
#include "peerlane/program/words/counter_line.h"

namespace peerlane::stream {

class CounterWords {
 public:
  struct Claim {
    uint64_t* word = nullptr;
    uint64_t total = 0;  // to be stored there
    DevicePost after;    // the stream must wait for it before, if it has a word
  };

  // The word for the next post of `queue`, which adds `add` to the counter. Null when all words are
  // reserved.
  Claim claim(std::byte* line, const SubmissionQueue& queue, uint64_t add);
  // After a claim the caller must call one of the two: settle() with the post that was made, or
  // undo() when none was made.
  void settle(std::byte* line, const Claim& claim, const DevicePost& post);
  void undo(std::byte* line, const Claim& claim, uint64_t add);
  // A word whose only writer is one graph or queue, with its present total; null when no word is
  // idle. The caller must give it back with the total that its writer left.
  Claim reserve(std::byte* line);
  void giveBack(std::byte* line, const Claim& claim, uint64_t total);
  // Forgets the lines in [address, address + bytes), which are gone.
  void forget(const std::byte* address, size_t bytes);

 private:
  struct Word {
    const SubmissionQueue* queue = nullptr;
    DevicePost last;
    uint64_t claims = 0;  // order of use
    uint64_t total = 0;
    bool reserved = false;
  };
  using Words = std::array<Word, CounterLine::kDeviceWords>;
  Word& wordOf(std::byte* line, const Claim& claim);
  std::unordered_map<std::byte*, Words> lines_;
  uint64_t claims_ = 0;
};

// The CounterWords of one context, whose devices add to the same counters of a peer. The executor
// holds the lock from the claim until the post is settled, so that no other device takes the word
// in between.
struct SharedCounterWords final : CounterLender {
  Result<LentCounter> lend(std::byte* line) override;
  void giveBack(const LentCounter& lent) override;
  // Does `work` under the mutex, as PostingLock::soon. Lifetime: this object outlives the work.
  void soon(std::function<void(CounterWords&)> work) {
    mutex.soon([this, work = std::move(work)]() PEERLANE_REQUIRES(mutex) { work(words); });
  }

  PostingLock mutex;
  CounterWords words PEERLANE_GUARDED_BY(mutex);
};

}  // namespace peerlane::stream
