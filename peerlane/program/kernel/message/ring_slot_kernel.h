// SPDX-License-Identifier: Apache-2.0
//
// Ring-slot kernel: one launch that does the words of one message slot of some rings, as a side of
// a rendezvous message does before and after the copy: wait for a word, check one, store words. It
// does the same as a step launch (step_kernel.h) of that one shape, but interprets nothing: few
// parameters, one warp. Any thread may call; the launch goes to the caller's current device, which
// must be the stream's. Usable under stream capture.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/core/status.h"

namespace peerlane::kernel {

inline constexpr uint32_t kMostSlotValues = 4;
inline constexpr uint32_t kMostRingSlots = 32;

// A ring's word of message n: base + (n mod slots) * strideBytes. The kernel waits for n + delta,
// as step kernels wait, or stores it.
struct RingWord {
  std::byte* base = nullptr;  // null: there is no such word
  uint32_t strideBytes = 0;
  int32_t delta = 0;
};

// The requirements of every message kernel on its rings.
inline bool isRing(const RingWord& word, uint32_t alignment = 8) {
  return word.base != nullptr &&
         ((reinterpret_cast<uintptr_t>(word.base) | word.strideBytes) & (alignment - 1)) == 0;
}
inline bool isSlotCount(uint32_t slots) {
  return slots != 0 && slots <= kMostRingSlots && (slots & (slots - 1)) == 0;
}

struct RingSlotJob {
  uint64_t cursor = 0;  // n; with a cursor word, n is that word and this
  // In memory of the device; each execution adds `advance` to it.
  uint64_t* cursorWord = nullptr;
  const uint64_t* abort = nullptr;  // pinned host memory, or null
  uint64_t* fault = nullptr;
  // A word in memory of the device that the launches of some messages share, or null. A launch
  // whose wait is released stores 1 there. A launch that tells the peer something and finds it not
  // 0 is released at once, because work that a stream does after an abandoned message must not
  // reach the peer.
  uint64_t* ended = nullptr;
  uint64_t* completion = nullptr;  // stored last, even if a wait was released; or null
  uint64_t completionValue = 0;
  // The kernel does this in order: wait; if the word `checkAt` bytes after it is not `expected`,
  // store the fault word; store the values, from `valuesAt` of the slot of `tell` on; store `tell`,
  // a release of everything before it if `tellsWrites`. Poison, or an abort word that is not 0,
  // releases a wait: the kernel then stores kReleasedFault to the fault word, advances the cursor,
  // stores the completion, and leaves out the rest.
  RingWord wait, tell;
  uint64_t expected = 0;
  uint64_t values[kMostSlotValues] = {};
  uint32_t faultValue = 0;
  uint32_t advance = 0;
  uint16_t checkAt = 0;  // 0: no check
  uint16_t valuesAt = 0;
  uint8_t valueCount = 0;
  uint8_t slots = 0;  // a power of two, at most kMostRingSlots
  bool tellsWrites = false;
  bool tellsPeer = false;
};
static_assert(sizeof(RingSlotJob) <= 160, "parameters are copied with every launch");

struct RingSlotLaunch {
  RingSlotJob job;
  // The device may set up the launch while the kernel before it in the stream ends (sm_90 and
  // newer; the launch reads and writes nothing before that end). A ring-slot kernel lets the next
  // launch begin so when its first wait is satisfied.
  bool overlapsEnd = false;
  void* stream = nullptr;  // cudaStream_t
};

// Makes the kernels resident on the current device, as loadCopyKernels() does.
Status loadRingSlotKernels();

// Errors: InvalidArgument, System (the launch failed).
Status launchRingSlot(const RingSlotLaunch& launch);

// The checks of a launch that are the same for every device. Errors: InvalidArgument.
Status checkRingSlot(const RingSlotLaunch& launch);

}  // namespace peerlane::kernel
