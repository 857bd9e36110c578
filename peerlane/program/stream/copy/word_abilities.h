// SPDX-License-Identifier: Apache-2.0
//
// WordAbilities: what streams of a GPU can do with words, as the driver says. WordPlace: in what
// kind of memory a word lies. Plain values; any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/core/status.h"

namespace peerlane::stream {

struct WordAbilities {
  int gpu = 0;
  bool has64Bits = false;        // memory operations on words of 64 bits
  bool hasNor = false;           // waits that compare by nor
  bool hasFlush = false;         // a memory operation that flushes writes of other devices
  bool ordersNicWrites = false;  // who sees a word of a NIC sees the bytes that it wrote before
  bool addsToHost = false;       // atomic additions in host memory, beside those of CPUs

  // Errors: kNotSupported (no CUDA), kInvalidArgument (no such GPU), kSystem.
  static Result<WordAbilities> of(int gpu);
  // The GPU adds atomically to memory of that other one.
  bool addsTo(int otherGpu) const;
};

struct WordPlace {
  enum class Kind : uint8_t {
    kUnknown,  // pageable, freed, or with another address for the GPU
    kPinned,   // host memory: CPUs load and store it plainly
    kManaged,  // which memory operations refuse
    kGpu,
  };
  Kind kind = Kind::kUnknown;
  int gpu = -1;  // kGpu: whose

  // Asks the driver: some hundred nanoseconds. A context must be current.
  static WordPlace of(const std::byte* address);
};

}  // namespace peerlane::stream
