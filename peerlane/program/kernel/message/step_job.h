// SPDX-License-Identifier: Apache-2.0
//
// Step job: the parameters of the step kernel. The host sorts the steps into phases so that the
// device issues together the accesses that do not depend on each other: a phase is waits, then
// checks, then at most two copies, then stores. Plain values, no CUDA header, no state.
#pragma once

#include "peerlane/core/status.h"
#include "peerlane/program/kernel/message/step_kernel.h"

namespace peerlane::kernel {

// So many copies may have their bytes in the thread's registers during the wait.
inline constexpr uint32_t kHeldCopies = 2;
inline constexpr uint32_t kStepThreads = 512;
inline constexpr uint8_t kNoArrival = 0xff;
// With several blocks, so many phases may end with stores: each has its own part of the arrival
// word.
inline constexpr uint8_t kMostArrivals = 2;

struct StepSpot {
  uint64_t at;  // slots == 0: the address, or a late place's offset; else slot 0's
  int64_t slotDelta;
  uint32_t slots;
  uint32_t strideBytes;
};

struct StepItem {
  StepSpot to, from;
  uint64_t bytes;
  uint64_t value;
  uint8_t unitBytes;  // a copy that one round of the threads does: bytes per thread; 0: by tiles
  bool byCursor;
  bool early;
  bool readsOnly;
  bool lateTo, lateFrom;
};

// Its items are in this order, `first` is the number of its first.
struct StepPhase {
  uint8_t first, waits, checks, copies, stores;
  uint8_t arrival;  // which part of the arrival word; kNoArrival: no store follows the copies
  bool late;
};

struct StepJob {
  uint64_t cursor;
  uint64_t* cursorWord;
  uint64_t advance;
  const uint64_t* abort;
  uint64_t* fault;
  uint64_t faultValue;
  uint64_t* ended;
  WordStore completion;
  StepSpot envelope;
  uint32_t allocationAt, generationAt, offsetAt;
  RegionTable table;
  uint32_t* arrivals;
  uint32_t phaseCount;
  StepPhase phases[kMostSteps];
  StepItem items[kMostSteps];
};

struct StepShape {
  uint32_t ctas = 1;
  uint32_t threads = 32;
  bool byTiles = false;  // some copy is too large for one round of the threads, or late
};

// Errors: InvalidArgument.
Status makeStepJob(const StepLaunch& launch, StepJob& job, StepShape& shape);

}  // namespace peerlane::kernel
