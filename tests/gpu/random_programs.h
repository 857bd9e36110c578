// SPDX-License-Identifier: Apache-2.0
//
// RandomPair: two programs of words and copies, and the memory that they run in, from one seed.
// Whoever runs both at the same time gets the same memory: each side has places of its own, and
// what they share has one owner at a time, who hands it over by a word for which the other waits.
// So a CPU says what a GPU must find.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "peerlane/program/model/binding.h"
#include "peerlane/program/model/program.h"

namespace peerlane::gputest {

struct RandomWishes {
  bool crosses = true;        // the sides hand something over
  bool hasSlotCopies = true;  // copies from and to rings
  bool addsToPinned = true;   // also counters in pinned memory
  bool flushesOwn = true;     // flushes of this side's memory
};

// Two blocks: pinned host memory, and memory of a GPU. Both are known by their offsets alone.
struct RandomMemory {
  static constexpr size_t kPinnedBytes = 8192, kDeviceBytes = 4096;
  std::array<std::byte, kPinnedBytes> pinned{};
  std::array<std::byte, kDeviceBytes> device{};
  bool operator==(const RandomMemory&) const = default;
};

struct RandomPair {
  struct Side {
    Program program;
    std::vector<uint64_t> cursors;
  };
  std::array<Side, 2> sides;
  RandomMemory before;

  RandomPair(uint64_t seed, const RandomWishes& wishes);
  // Of side `side`, in memory that begins there.
  static Binding bind(size_t side, std::byte* pinned, std::byte* device);
  std::string toString() const;
};

// Runs both sides by turns on the CPU. False: they do not end.
bool runOnCpu(const RandomPair& pair, RandomMemory& memory);

}  // namespace peerlane::gputest
