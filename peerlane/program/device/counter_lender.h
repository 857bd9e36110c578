// SPDX-License-Identifier: Apache-2.0
//
// CounterLender: lends words of counter lines (program/words/counter_line.h) to writers that live
// longer than a post: graphs, and queues whose programs a device runs. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/core/status.h"

namespace peerlane {

// A word that was lent: its borrower is its only writer, and stores running totals there.
struct LentCounter {
  std::byte* line = nullptr;
  uint64_t* word = nullptr;
  uint64_t total = 0;  // what it had when it was lent
};

class CounterLender {
 public:
  // `line`: of memory that the device reaches. May wait for a thread that is posting. Errors:
  // kUnavailable when no word is idle, with their number.
  virtual Result<LentCounter> lend(std::byte* line) = 0;
  // Nothing stores to the word any more, so it has the total. Never blocks.
  virtual void giveBack(const LentCounter& lent) = 0;

 protected:
  ~CounterLender() = default;
};

}  // namespace peerlane
