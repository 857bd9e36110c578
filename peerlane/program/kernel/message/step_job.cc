// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/kernel/message/step_job.h"

#include <algorithm>

namespace peerlane::kernel {
namespace {

Status invalidStep(const char* what) {
  return Status(Code::kInvalidArgument, what);
}

StepSpot spotOf(const StepPlace& place, const StepLaunch& launch) {
  StepSpot spot{reinterpret_cast<uintptr_t>(place.base) + place.offset, place.slotDelta,
                place.slots, place.strideBytes};
  if (place.late) return {place.offset, 0, 0, 0};
  if (place.slots == 0) return {spot.at, 0, 0, 0};
  if (launch.cursorWord != nullptr) return spot;
  // The host knows the cursor, so the device need not divide.
  const auto slots = static_cast<int64_t>(place.slots);
  int64_t slot = (static_cast<int64_t>(launch.cursor) + place.slotDelta) % slots;
  if (slot < 0) slot += slots;
  return {spot.at + static_cast<uint64_t>(slot) * place.strideBytes, 0, 0, 0};
}

bool isWord(const StepPlace& place) {
  const uint64_t bits = (reinterpret_cast<uintptr_t>(place.base) + place.offset) |
                        (place.slots > 0 ? place.strideBytes : 0);
  return place.base != nullptr && !place.late && bits % 8 == 0;
}

// The bytes that each thread moves if one round does the copy, else 0.
uint8_t unitBytes(const Step& step) {
  if (step.to.late || step.from.late) return 0;
  uint64_t bits = step.bytes;
  for (const StepPlace* place : {&step.to, &step.from})
    bits |= (reinterpret_cast<uintptr_t>(place->base) + place->offset) |
            (place->slots > 0 ? place->strideBytes : 0);
  const uint8_t unit = bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : 1;
  return step.bytes / unit <= kStepThreads ? unit : 0;
}

Status check(const StepLaunch& launch) {
  if (launch.count > kMostSteps || (launch.count > 0 && launch.steps == nullptr))
    return invalidStep("a launch has at most 8 steps");
  if (launch.ctas > kMostStepCtas) return invalidStep("a launch of steps has at most 255 CTAs");
  if (launch.ctas > 1 && launch.arrivals == nullptr)
    return invalidStep("several CTAs need a word for arrivals");
  bool late = false;
  for (uint32_t i = 0; i < launch.count; ++i) {
    const Step& step = launch.steps[i];
    if (step.code != StepCode::kCopy) {
      if (!isWord(step.to))
        return invalidStep("a step's word must be aligned memory, and not late");
      continue;
    }
    late = late || step.to.late || step.from.late;
    if (step.bytes == 0) continue;
    if ((!step.to.late && step.to.base == nullptr) ||
        (!step.from.late && step.from.base == nullptr))
      return invalidStep("a step copies from or to nowhere");
    if (step.early && step.from.late) return invalidStep("a late source cannot be read early");
  }
  if (late && (!isWord(launch.late.envelope) || launch.late.table.entries == nullptr ||
               launch.late.table.slots == 0))
    return invalidStep("late places need an envelope and a table");
  return Status::ok();
}

// Which part of its phase a step is.
uint32_t partOf(StepCode code) {
  switch (code) {
    case StepCode::kWait: return 0;
    case StepCode::kExpect: return 1;
    case StepCode::kCopy: return 2;
    case StepCode::kStore: return 3;
  }
  return 0;
}

void sortIntoPhases(const StepLaunch& launch, StepJob& job, StepShape& shape) {
  job.phaseCount = 1;
  uint32_t last = 0;
  uint8_t items = 0;
  for (uint32_t i = 0; i < launch.count; ++i) {
    const Step& step = launch.steps[i];
    if (step.code == StepCode::kCopy && step.bytes == 0) continue;
    const uint32_t part = partOf(step.code);
    StepPhase* phase = &job.phases[job.phaseCount - 1];
    if (part < last || (part == 2 && phase->copies == kHeldCopies)) {
      phase = &job.phases[job.phaseCount++];
      phase->first = items;
    }
    last = part;
    ++(part == 0   ? phase->waits
       : part == 1 ? phase->checks
       : part == 2 ? phase->copies
                   : phase->stores);
    StepItem& item = job.items[items++];
    item = {.to = spotOf(step.to, launch),
            .from = {},
            .bytes = step.bytes,
            .value = static_cast<uint64_t>(step.delta),
            .unitBytes = 0,
            .byCursor = step.byCursor,
            .early = step.early,
            .readsOnly = step.readsOnly,
            .lateTo = step.to.late,
            .lateFrom = step.from.late};
    if (step.code != StepCode::kCopy) continue;
    item.from = spotOf(step.from, launch);
    item.unitBytes = unitBytes(step);
    phase->late = phase->late || step.to.late || step.from.late;
    if (item.unitBytes == 0) {
      shape.byTiles = true;
      const uint64_t warps = (step.bytes + 4095) / 4096;
      shape.threads = std::max(shape.threads,
                               static_cast<uint32_t>(std::min<uint64_t>(warps * 32, kStepThreads)));
    } else {
      const auto units = static_cast<uint32_t>(step.bytes / item.unitBytes);
      shape.threads = std::max(shape.threads, (units + 31) / 32 * 32);
    }
  }
}

}  // namespace

Status makeStepJob(const StepLaunch& launch, StepJob& job, StepShape& shape) {
  PEERLANE_RETURN_IF_ERROR(check(launch));
  job = {};
  shape = {};
  shape.ctas = std::max(launch.ctas, 1u);
  sortIntoPhases(launch, job, shape);
  if (shape.ctas > 1) shape.threads = kStepThreads;
  uint8_t arrivals = 0;
  for (uint32_t i = 0; i < job.phaseCount; ++i) {
    StepPhase& phase = job.phases[i];
    const bool ends = i + 1 == job.phaseCount &&
                      (launch.completion.word != nullptr || launch.cursorWord != nullptr);
    phase.arrival = phase.stores > 0 || ends ? arrivals++ : kNoArrival;
  }
  if (shape.ctas > 1 && arrivals > kMostArrivals)
    return invalidStep("several CTAs can store after two groups of copies, not more");
  job.cursor = launch.cursor;
  job.cursorWord = launch.cursorWord;
  job.advance = launch.advance;
  job.abort = launch.abort;
  job.fault = launch.fault;
  job.faultValue = launch.faultValue;
  job.ended = launch.ended;
  job.completion = launch.completion;
  job.envelope = spotOf(launch.late.envelope, launch);
  job.allocationAt = launch.late.allocationAt;
  job.generationAt = launch.late.generationAt;
  job.offsetAt = launch.late.offsetAt;
  job.table = launch.late.table;
  job.arrivals = launch.arrivals;
  return Status::ok();
}

}  // namespace peerlane::kernel
