// SPDX-License-Identifier: Apache-2.0
//
// Numbered kernels: the two sides of a message of at most 1 KiB whose bytes travel in numbered
// units (program/model/op.h), one launch each. A unit is 16 bytes that are stored at once: 8 of the
// message, and a tag: the number of the message, and from bit 48 on its length. The receiver polls
// the units themselves, so that the sender needs no fence and no word behind the bytes, and the
// receiver no look at the bytes behind a word: one way over the link, where a word behind a fence
// costs three. A message of no bytes is one unit. Any thread may call; the launch goes to the
// caller's current device, which must be the stream's. Usable under stream capture.
//
// What a message of 8 bytes waits for, one after another (L: this GPU's memory, P: the peer's):
//   send     L: credit, source and cursor, at once   P: the unit
//   receive  L: the unit   L: the destination   P: credit, which nobody waits for
// and behind each, if it is told, their fence and the completion word in the host's memory. Nothing
// is read over PCIe but the abort word, by who has polled 64 times.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/core/device_code.h"
#include "peerlane/core/status.h"
#include "peerlane/program/kernel/message/turn_kernel.h"
#include "peerlane/program/model/op.h"

namespace peerlane::kernel {

inline constexpr uint32_t kMostNumberedBytes = 1024;
inline constexpr uint32_t kTagLengthBit = 48;

// The tag of every unit of a message of `bytes` bytes that has the number `number`.
PEERLANE_DEVICE constexpr uint64_t numberedTag(uint64_t number, uint64_t bytes) {
  return number | bytes << kTagLengthBit;
}

struct NumberedJob {
  uint64_t cursor = 0;  // n; with a cursor word, n is that word and this
  // Memory of the device; grows by `advance` once per execution.
  uint64_t* cursorWord = nullptr;
  const uint64_t* abort = nullptr;  // pinned host memory, or null
  uint64_t* fault = nullptr;  // stored where a receiver's length differs; kReleasedFault; or null
  // As TurnJob's; a receiver does not look at it, for what it takes out has been sent.
  uint64_t* ended = nullptr;
  uint64_t* completion = nullptr;  // stored last, however the launch ended; or null
  uint64_t completionValue = 0;
  std::byte* local = nullptr;  // what is copied, or where to
  // Slots of units; `delta`: n + delta is the number of message n.
  TurnWord units;
  // Words: the sender waits for n + delta, the receiver stores it when it has all units.
  TurnWord credits;
  uint32_t faultValue = 0;
  uint32_t advance = 0;
  uint16_t bytes = 0;  // at most kMostNumberedBytes
  uint8_t slots = 0;   // a power of two, at most kMostTurnSlots
};
static_assert(sizeof(NumberedJob) <= 128, "parameters are copied with every launch");

struct NumberedLaunch {
  NumberedJob job;
  bool isSend = false;
  bool overlapsEnd = false;  // as TurnLaunch's
  void* stream = nullptr;    // cudaStream_t
};

// Makes the kernels resident on the current device, as loadCopyKernels() does.
Status loadNumberedKernels();

// An abort word that is not 0, or poison, releases a wait: then all is left out but cursor and
// completion. Where the lengths differ the receiver takes nothing out, and gives the slot back.
// Errors: InvalidArgument, System (the launch failed).
Status launchNumbered(const NumberedLaunch& launch);

// What is the same for every device that runs one.
Status checkNumbered(const NumberedLaunch& launch);

}  // namespace peerlane::kernel
