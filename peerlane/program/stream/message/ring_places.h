// SPDX-License-Identifier: Apache-2.0
//
// How the lowering reads the steps of a program as words and places of rings, for kernels that are
// made for one shape of program. Pure functions; false: the step or place is none.
#pragma once

#include <limits>

#include "peerlane/program/kernel/message/ring_slot_kernel.h"
#include "peerlane/program/stream/message/message_step.h"

namespace peerlane::stream {

inline bool isRing(const StepPlace& place, uint32_t slots) {
  return !place.late && place.slots == slots && place.slotDelta == 0 && slots != 0 &&
         slots <= kernel::kMostRingSlots && (slots & (slots - 1)) == 0;
}

// Reads a step on a word that counts messages as its ring.
inline bool readRing(const Step& step, StepCode code, uint32_t slots, kernel::RingWord& word) {
  if (step.code != code || !step.byCursor || !isRing(step.to, slots) ||
      step.delta < std::numeric_limits<int32_t>::min() ||
      step.delta > std::numeric_limits<int32_t>::max())
    return false;
  word = {step.to.base + step.to.offset, step.to.strideBytes, static_cast<int32_t>(step.delta)};
  return true;
}

// Reads the offset of a place in the slot of `word`.
inline bool readInSlot(const StepPlace& place, const StepPlace& word, uint16_t& at) {
  if (!isRing(place, word.slots) || place.base != word.base ||
      place.strideBytes != word.strideBytes || place.offset < word.offset ||
      place.offset - word.offset >= place.strideBytes ||
      place.offset - word.offset > std::numeric_limits<uint16_t>::max())
    return false;
  at = static_cast<uint16_t>(place.offset - word.offset);
  return true;
}

}  // namespace peerlane::stream
