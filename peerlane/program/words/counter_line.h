// SPDX-License-Identifier: Apache-2.0
//
// CounterLine: the layout of a counter to which devices add as well. CUDA has no atomic operation
// on a stream, and a GPU has none on host memory across PCIe. So a counter is a cache line of eight
// words; each word has one writer, which stores its own running total in order, and the counter's
// value is their sum. Word 0 belongs to CPUs, which add atomically; words 1 to 7 belong to streams
// of devices (CounterWords). Plain functions on shared memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/program/words/word.h"

namespace peerlane {

struct CounterLine {
  static constexpr uint32_t kWords = 8;
  static constexpr uint32_t kDeviceWords = kWords - 1;
  static constexpr uint32_t kBytes = kWords * sizeof(uint64_t);

  // Acquire: writes made before any of the additions in the value are visible.
  static uint64_t value(const std::byte* line) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < kWords; ++i) sum += loadWord(line + i * sizeof(uint64_t), Width::k64);
    return sum;
  }
};

}  // namespace peerlane
