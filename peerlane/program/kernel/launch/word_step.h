// SPDX-License-Identifier: Apache-2.0
//
// The words for which a kernel waits before its work and which it stores after it, as plain values
// that travel in the launch's parameters: no CUDA header, any thread. Pointers are addresses of the
// device.
#pragma once

#include <cstdint>

#include "peerlane/core/device_code.h"

namespace peerlane::kernel {

// The number to wait for or to store: `delta` alone, or *cursor + delta when the kernel runs. A
// cursor lies in memory of the device that runs the kernel; with it the kernel is right when a
// graph replays it.
struct WordOperand {
  const uint64_t* cursor = nullptr;
  uint64_t delta = 0;
};

struct WordWait {
  const uint64_t* word = nullptr;  // null: nothing is waited for
  WordOperand atLeast;
  // The abort word in pinned host memory, or null. Anything but 0 ends the wait; a kernel without a
  // wait reads it once.
  const uint64_t* abort = nullptr;
};

struct WordStore {
  uint64_t* word = nullptr;
  WordOperand value;
};

inline constexpr uint32_t kMaxWordStores = 4;

// The stores that the last thread of a kernel makes, after a fence has made everything before them
// visible to the whole system.
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
