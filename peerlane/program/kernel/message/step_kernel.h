// SPDX-License-Identifier: Apache-2.0
//
// Step kernel: one launch that runs a short program of waits, copies, stores and checks, such as
// one side of a message protocol. Built for small messages, whose cost is that of the launch and of
// a few round trips to memory; several thread blocks share a large copy. Stateless: all places are
// arguments of the launch. Lists are copied by copy_kernel.h. Any thread may call; the launch goes
// to the caller's current device, which must be the stream's. Usable under stream capture.
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
// `late`: the place that LateSource finds, + offset; only for copies.
struct StepPlace {
  std::byte* base = nullptr;
  uint64_t offset = 0;
  uint32_t slots = 0;
  uint32_t strideBytes = 0;
  int64_t slotDelta = 0;
  bool late = false;
};

enum class StepCode : uint8_t {
  // Until (int64)(word `to` - value) >= 0. Poison, or an abort word that is not 0, releases it: the
  // kernel then leaves out all other steps and stores only the completion.
  kWait,
  kCopy,  // `bytes` from `from` to `to`
  // Word `to` = value, a system-wide release of everything before it. Stores that follow each other
  // directly are in no order among themselves.
  kStore,
  // The word `to` must equal value; else the kernel stores the fault word and leaves out later
  // copies, but not later stores.
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
  // kCopy: the waits before it do not guard the source, so the kernel may read it before they are
  // satisfied. Saves a round trip to memory.
  bool early = false;
  // kStore: tells only that this side has read the bytes; the peer that sees the word must not rely
  // on any earlier write. Saves a fence.
  bool readsOnly = false;
};

// How the kernel finds late places: three words of an envelope name a region and an offset in it;
// the kernel reads them when the waits before the copy are satisfied. It waits for a region that is
// not in the table until the region appears or the abort word is not 0. A copy that reaches outside
// the region is a fault, as kExpect's.
struct LateSource {
  StepPlace envelope;
  uint32_t allocationAt = 0, generationAt = 0, offsetAt = 0;  // bytes in the envelope
  RegionTable table;
};

struct StepLaunch {
  const Step* steps = nullptr;  // the caller may reuse it after the call
  uint32_t count = 0;           // at most kMostSteps
  uint64_t cursor = 0;
  // A cursor in memory of the device, used instead of `cursor`; each execution adds `advance` to
  // it. With it the launch is right when a graph replays it.
  uint64_t* cursorWord = nullptr;
  uint64_t advance = 0;
  LateSource late;
  const uint64_t* abort = nullptr;  // pinned host memory, or null
  WordStore completion;  // stored last, even if a wait was released; word null: none, saves a fence
  uint64_t* fault = nullptr;
  uint64_t faultValue = 0;
  uint64_t* ended = nullptr;  // as RingSlotJob's (ring_slot_kernel.h)
  // So many thread blocks share the copies, and each of them does all waits. The caller must launch
  // the wait alone before it, else they occupy the device during the wait.
  uint32_t ctas = 1;
  // The arrival word, in the device's memory. It must hold 0 and holds 0 again after the launch;
  // one launch at a time may use it. May be null with one block.
  uint32_t* arrivals = nullptr;
  // The device may set up the launch while the kernel before it in the stream ends (sm_90 and
  // newer; the launch reads and writes nothing before that end). Saves some of the gap between two
  // short kernels. A step kernel lets the next launch begin so when its last wait is satisfied.
  bool overlapsEnd = false;
  void* stream = nullptr;  // cudaStream_t
};

// Makes the kernels resident on the current device, as loadCopyKernels() does.
Status loadStepKernels();

// Errors: InvalidArgument, System (the launch failed).
Status launchSteps(const StepLaunch& launch);

}  // namespace peerlane::kernel
