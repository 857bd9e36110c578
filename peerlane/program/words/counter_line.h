// SPDX-License-Identifier: Apache-2.0
//
// CounterLine: how a counter is laid out where devices add to it as well. CUDA has no atomic
// operation on a stream, and a GPU none on host memory across PCIe; so a counter is a cache line of
// eight words, each with one writer who stores his own running total in order, and its value is
// their sum. Word 0 belongs to CPUs (who add atomically), words 1 to 7 to lanes of devices. Plain
// functions on shared memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/program/words/word.h"

namespace peerlane {

struct CounterLine {
  static constexpr uint32_t kWords = 8;
  static constexpr uint32_t kDeviceLanes = kWords - 1;
  static constexpr uint32_t kBytes = kWords * sizeof(uint64_t);

  // Acquire: what was written before any of the additions in it is visible.
  static uint64_t value(const std::byte* line) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < kWords; ++i) sum += loadWord(line + i * sizeof(uint64_t), Width::k64);
    return sum;
  }
};

}  // namespace peerlane
