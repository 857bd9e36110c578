// SPDX-License-Identifier: Apache-2.0
//
// SplitCount: how many of something are under way, where one thread begins them and another sees
// them end. Each of the two counts on a cache line of its own, so neither waits for the other's
// line (60 to 100 ns each time where both count on one). The thread that asks for the value reads
// both lines. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "peerlane/core/device_code.h"

namespace peerlane {

class SplitCount {
 public:
  // Sequentially consistent with what the caller loads next.
  void begin(uint64_t count = 1) { begun_.fetch_add(count, std::memory_order_seq_cst); }
  // A release. Partner: value(), for the thread that then finds 0.
  void end() { ended_.fetch_add(1, std::memory_order_seq_cst); }

  // At least the number that was under way when the call began; 0 only if there were none at some
  // moment of the call. Acquires the writes that end() released.
  uint64_t value() const {
    const uint64_t ended = ended_.load(std::memory_order_seq_cst);
    return begun_.load(std::memory_order_seq_cst) - ended;
  }
  bool none() const { return value() == 0; }

 private:
  alignas(kCacheLineBytes) std::atomic<uint64_t> begun_{0};
  alignas(kCacheLineBytes) std::atomic<uint64_t> ended_{0};
};

}  // namespace peerlane
