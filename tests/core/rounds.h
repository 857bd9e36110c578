// SPDX-License-Identifier: Apache-2.0
//
// Rounds: how often a stress test does its thing: `count` times, or, where other programs keep the
// cores busy and every hand-over waits for a time slice, as often as fits into `time`.
#pragma once

#include <chrono>
#include <cstdint>

namespace peerlane {

class Rounds {
 public:
  explicit Rounds(uint64_t count, std::chrono::seconds time = std::chrono::seconds(10))
      : count_(count), end_(std::chrono::steady_clock::now() + time) {}

  // The number of the next round, from 1; 0 after the last one.
  uint64_t next() {
    if (done_ == count_ || std::chrono::steady_clock::now() >= end_) return 0;
    return ++done_;
  }
  uint64_t done() const { return done_; }

 private:
  const uint64_t count_;
  const std::chrono::steady_clock::time_point end_;
  uint64_t done_ = 0;
};

}  // namespace peerlane
