// SPDX-License-Identifier: Apache-2.0
//
// Turn kernel: one launch for one turn of the slots of some rings, which is what a side of a small
// message does: wait for a word, check one, move at most 2 KiB, store words. The same as a step
// launch (step_kernel.h) of that one shape, without anything to interpret: the parameters are 160
// bytes, and the critical path is as short as a kernel made for one message. Any thread may call;
// the launch goes to the caller's current device, which must be the stream's. Usable under stream
// capture.
//
// What a message of 8 bytes waits for, one after another (L: this GPU's memory, P: the peer's, H:
// the host's):
//   send     L: credit, source and cursor, at once   P: payload and length, then their fence
//            P: sequence word
//   receive  L: sequence word   L: payload and length, at once   P: credit, then its fence
//            L: free word
// and behind each, if it is told, H: the completion word. Nothing is read over PCIe but the abort
// word, by who has polled 64 times.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/core/status.h"

namespace peerlane::kernel {

inline constexpr uint32_t kMostTurnBytes = 2048;
inline constexpr uint32_t kMostTurnValues = 4;
inline constexpr uint32_t kMostTurnSlots = 32;

enum class TurnCopy : uint8_t { kNone, kToRing, kFromRing };

// A ring's word of message n: base + (n mod slots) * strideBytes. `delta`: n + delta is what is
// waited for, as step kernels wait, or stored.
struct TurnWord {
  std::byte* base = nullptr;  // null: there is no such word
  uint32_t strideBytes = 0;
  int32_t delta = 0;
};

struct TurnJob {
  uint64_t cursor = 0;  // n; with a cursor word, n is that word and this
  // Memory of the device; grows by `advance` once per execution.
  uint64_t* cursorWord = nullptr;
  const uint64_t* abort = nullptr;  // pinned host memory, or null
  uint64_t* fault = nullptr;
  uint64_t* completion = nullptr;  // stored last, however the launch ended; or null
  uint64_t completionValue = 0;
  std::byte* local = nullptr;  // what is copied, or where to
  // In this order: wait; if the word at `checkAt` behind it is not `expected`, store the fault word
  // and leave out the copy; copy; wait for `also`; store the values, from `valuesAt` of the slot of
  // `tell` on; store `tell`, a release of all before if it is `tellsWrites`; store `tellAlso`, a
  // release. `also` is looked at before the copy, too: its word only grows. Poison, or an abort
  // word that is not 0, releases a wait: then all the rest is left out but cursor and completion.
  TurnWord wait, also, tell, tellAlso;
  uint64_t expected = 0;
  uint64_t values[kMostTurnValues] = {};
  uint32_t faultValue = 0;
  uint32_t advance = 0;
  uint16_t bytes = 0;    // copied; at most kMostTurnBytes
  uint16_t copyAt = 0;   // in the slot of `tell` (to the ring) or of `wait` (from it)
  uint16_t checkAt = 0;  // 0: nothing is checked
  uint16_t valuesAt = 0;
  uint8_t valueCount = 0;
  uint8_t slots = 0;      // a power of two, at most kMostTurnSlots
  uint8_t unitBytes = 0;  // what a thread moves at once; 0: warps move 512 bytes; by launchTurn()
  bool tellsWrites = false;
};
static_assert(sizeof(TurnJob) <= 192, "parameters are copied with every launch");

struct TurnLaunch {
  TurnJob job;
  TurnCopy copy = TurnCopy::kNone;
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

// What is the same for every device that runs one: checks it, sets `unitBytes`, says how many
// threads.
Status shapeTurn(TurnLaunch& launch, uint32_t& threads);

}  // namespace peerlane::kernel
