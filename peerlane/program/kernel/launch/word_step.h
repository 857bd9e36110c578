// SPDX-License-Identifier: Apache-2.0
//
// What a kernel does with words before and after its work, as plain values that travel in the
// launch's parameters: no CUDA header, any thread. Pointers are what the device calls the memory.
#pragma once

#include <cstdint>

#include "peerlane/core/device_code.h"

namespace peerlane::kernel {

// The number to wait for or to store: `delta` alone, or *cursor + delta when the kernel runs. A
// cursor lies in memory of the device that runs the kernel, and makes the kernel right when a graph
// replays it.
struct WordOperand {
  const uint64_t* cursor = nullptr;
  uint64_t delta = 0;
};

struct WordWait {
  const uint64_t* word = nullptr;  // null: nothing is waited for
  WordOperand atLeast;
  // Pinned host memory, or null. Anything but 0 ends the wait; without a wait it is read once.
  const uint64_t* abort = nullptr;
};

struct WordStore {
  uint64_t* word = nullptr;
  WordOperand value;
};

inline constexpr uint32_t kMaxWordStores = 4;

// What the last thread of a kernel does when everything before is visible to everybody.
struct WordTail {
  WordStore stores[kMaxWordStores];  // the first `storeCount`; left out if the wait was released
  uint32_t storeCount = 0;
  WordStore completion;         // stored last, however the kernel ended; word null: none
  uint64_t* advance = nullptr;  // a cursor: grows by `step` once per execution, after the stores
  uint64_t step = 1;

  PEERLANE_DEVICE constexpr bool isEmpty() const {
    return storeCount == 0 && completion.word == nullptr && advance == nullptr;
  }
};

}  // namespace peerlane::kernel
