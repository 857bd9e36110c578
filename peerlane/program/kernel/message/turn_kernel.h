// SPDX-License-Identifier: Apache-2.0
//
// Turn kernel: one launch for one turn of the slots of some rings, which is what a side of a direct
// message does before and behind the copy: wait for a word, check one, store words. The same as a
// step launch (step_kernel.h) of that one shape, without anything to interpret: few parameters, one
// warp. Any thread may call; the launch goes to the caller's current device, which must be the
// stream's. Usable under stream capture.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/core/status.h"

namespace peerlane::kernel {

inline constexpr uint32_t kMostTurnValues = 4;
inline constexpr uint32_t kMostTurnSlots = 32;

// A ring's word of message n: base + (n mod slots) * strideBytes. `delta`: n + delta is what is
// waited for, as step kernels wait, or stored.
struct TurnWord {
  std::byte* base = nullptr;  // null: there is no such word
  uint32_t strideBytes = 0;
  int32_t delta = 0;
};

// What every kernel of messages asks of its rings.
inline bool isRing(const TurnWord& word, uint32_t alignment = 8) {
  return word.base != nullptr &&
         ((reinterpret_cast<uintptr_t>(word.base) | word.strideBytes) & (alignment - 1)) == 0;
}
inline bool isSlotCount(uint32_t slots) {
  return slots != 0 && slots <= kMostTurnSlots && (slots & (slots - 1)) == 0;
}

struct TurnJob {
  uint64_t cursor = 0;  // n; with a cursor word, n is that word and this
  // Memory of the device; grows by `advance` once per execution.
  uint64_t* cursorWord = nullptr;
  const uint64_t* abort = nullptr;  // pinned host memory, or null
  uint64_t* fault = nullptr;
  // Memory of the device, or null: what the launches of some messages share. One that is released
  // stores 1 there, and one that tells the peer something and finds it not 0 is released at once:
  // what a stream goes on to behind a message that was let go is not for the peer.
  uint64_t* ended = nullptr;
  uint64_t* completion = nullptr;  // stored last, however the launch ended; or null
  uint64_t completionValue = 0;
  // In this order: wait; if the word at `checkAt` behind it is not `expected`, store the fault
  // word; store the values, from `valuesAt` of the slot of `tell` on; store `tell`, a release of
  // all before if it is `tellsWrites`. Poison, or an abort word that is not 0, releases a wait:
  // then kReleasedFault is stored to the fault word, and all the rest is left out but cursor and
  // completion.
  TurnWord wait, tell;
  uint64_t expected = 0;
  uint64_t values[kMostTurnValues] = {};
  uint32_t faultValue = 0;
  uint32_t advance = 0;
  uint16_t checkAt = 0;  // 0: nothing is checked
  uint16_t valuesAt = 0;
  uint8_t valueCount = 0;
  uint8_t slots = 0;  // a power of two, at most kMostTurnSlots
  bool tellsWrites = false;
  bool tellsPeer = false;
};
static_assert(sizeof(TurnJob) <= 160, "parameters are copied with every launch");

struct TurnLaunch {
  TurnJob job;
  // The launch may be set up while the kernel before it in the stream comes to its end (sm_90 and
  // newer; nothing is read or written before that). Turn kernels let the one behind them begin so
  // when their first wait is satisfied.
  bool overlapsEnd = false;
  void* stream = nullptr;  // cudaStream_t
};

// Makes the kernels resident on the current device, as loadCopyKernels() does.
Status loadTurnKernels();

// Errors: InvalidArgument, System (the launch failed).
Status launchTurn(const TurnLaunch& launch);

// What is the same for every device that runs one.
Status checkTurn(const TurnLaunch& launch);

}  // namespace peerlane::kernel
