// SPDX-License-Identifier: Apache-2.0
//
// Step kernel: one launch that runs a short program of waits, copies, stores and checks, such as
// one side of a message protocol. Built for small messages, where a message costs what its launch
// and its few round trips to memory cost; large copies are shared among several blocks of threads.
// Not for lists (copy_kernel.h), not an executor: places are told, nothing is remembered. Any
// thread may call; the launch goes to the caller's current device, which must be the stream's.
// Usable under stream capture.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/core/status.h"
#include "peerlane/program/kernel/launch/word_step.h"
#include "peerlane/program/kernel/message/named_region.h"

namespace peerlane::kernel {

inline constexpr uint32_t kMostSteps = 8;
inline constexpr uint32_t kMostStepCtas = 255;

// base + offset; with slots > 0: base + ((cursor + slotDelta) mod slots) * strideBytes + offset.
// `late`: `offset` bytes behind what LateSource finds; only for copies.
struct StepPlace {
  std::byte* base = nullptr;
  uint64_t offset = 0;
  uint32_t slots = 0;
  uint32_t strideBytes = 0;
  int64_t slotDelta = 0;
  bool late = false;
};

enum class StepCode : uint8_t {
  // Until (int64)(word `to` - value) >= 0. Poison, or an abort word that is not 0, releases it:
  // then
  // all the rest is left out but the completion.
  kWait,
  kCopy,  // `bytes` from `from` to `to`
  // Word `to` = value, a release for the whole system of all before. Stores that follow each other
  // directly are in no order among themselves.
  kStore,
  // The word `to` equals value; else the fault word is stored, later copies are left out and stores
  // are done.
  kExpect,
};

// Copies between two waits are in no order among themselves; a copy must not read what a copy of
// the same launch wrote.
struct Step {
  StepCode code = StepCode::kWait;
  StepPlace to{};
  StepPlace from{};
  uint64_t bytes = 0;
  int64_t delta = 0;  // the value: delta, or cursor + delta
  bool byCursor = false;
  // kCopy: the source is not what the waits in front are for, so it may be read before they are
  // satisfied. Saves a round trip to memory.
  bool early = false;
  // kStore: tells only that what was to be read has been read; whoever sees the word reads nothing
  // that was written before. Saves a fence.
  bool readsOnly = false;
};

// Where late places are: three words of an envelope name a region and an offset in it, and are read
// when the waits in front of the copy are satisfied. A region that is not in the table is waited
// for, until the abort word is not 0. A copy that reaches outside of the region is a fault, as
// kExpect's.
struct LateSource {
  StepPlace envelope;
  uint32_t allocationAt = 0, generationAt = 0, offsetAt = 0;  // bytes in the envelope
  RegionTable table;
};

struct StepLaunch {
  const Step* steps = nullptr;  // the caller's again after the call
  uint32_t count = 0;           // at most kMostSteps
  uint64_t cursor = 0;
  // Memory of the device; used instead of `cursor`, and grows by `advance` once per execution: what
  // makes the launch right when a graph replays it.
  uint64_t* cursorWord = nullptr;
  uint64_t advance = 0;
  LateSource late;
  const uint64_t* abort = nullptr;  // pinned host memory, or null
  WordStore completion;  // stored last, however the launch ended; word null: none, saves a fence
  uint64_t* fault = nullptr;
  uint64_t faultValue = 0;
  uint64_t* ended = nullptr;  // as TurnJob's (turn_kernel.h)
  // Copies are shared by so many blocks, each of which does all waits: put a launch with the wait
  // alone in front, lest they occupy the device.
  uint32_t ctas = 1;
  // A word of the device's memory that holds 0 and is left so, used by one launch at a time; may be
  // null with one block.
  uint32_t* arrivals = nullptr;
  // The launch may be set up while the kernel before it in the stream comes to its end (sm_90 and
  // newer; nothing of it is read or written before that). Saves some of the gap between two short
  // kernels. Step kernels let the one behind them begin so when their last wait is satisfied.
  bool overlapsEnd = false;
  void* stream = nullptr;  // cudaStream_t
};

// Makes the kernels resident on the current device, as loadCopyKernels() does.
Status loadStepKernels();

// Errors: InvalidArgument, System (the launch failed).
Status launchSteps(const StepLaunch& launch);

}  // namespace peerlane::kernel
