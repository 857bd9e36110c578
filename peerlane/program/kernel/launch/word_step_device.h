// SPDX-License-Identifier: Apache-2.0
//
// The device's side of word_step.h. One thread of a kernel calls each.
#pragma once

#if defined(__CUDACC__)

#include "peerlane/program/kernel/launch/word_step.h"
#include "peerlane/program/words/word_device.h"

namespace peerlane::kernel {

__device__ __forceinline__ uint64_t operandNow(const WordOperand& operand) {
  return operand.cursor == nullptr ? operand.delta : *operand.cursor + operand.delta;
}

// False when the kernel must leave out the work after the wait.
__device__ inline bool passesWait(const WordWait& wait) {
  if (wait.word == nullptr)
    return wait.abort == nullptr || device::loadWordRelaxed(wait.abort) == 0;
  return device::waitWord(wait.word, operandNow(wait.atLeast), wait.abort) ==
         device::Waited::kSatisfied;
}

// The caller must first make visible, by a fence, the work that the stores announce.
__device__ inline void performTail(const WordTail& tail, bool released) {
  if (!released)
#pragma unroll
    for (uint32_t i = 0; i < kMaxWordStores; ++i)
      if (i < tail.storeCount)
        device::storeWordRelaxed(tail.stores[i].word, operandNow(tail.stores[i].value));
  if (tail.completion.word != nullptr) {
    // The thread that reads the completion may free the memory of the other words.
    if (tail.storeCount != 0) device::fenceSystem();
    device::storeWordRelaxed(tail.completion.word, operandNow(tail.completion.value));
  }
  if (tail.advance != nullptr) *tail.advance += tail.step;
}

}  // namespace peerlane::kernel

#endif  // defined(__CUDACC__)
