// SPDX-License-Identifier: Apache-2.0
//
// How a message kernel sees and records that a wait was released, for the launches after it. `Job`:
// the parameters of such a kernel, with `fault` and `ended` as in RingSlotJob.
#pragma once

#if defined(__CUDACC__)

#include <cstdint>

#include "peerlane/program/model/op.h"
#include "peerlane/program/words/word_device.h"

namespace peerlane::kernel {

// Another stream may store the word at any time, so threads that have to agree must let one of them
// look.
template <class Job>
__device__ __forceinline__ bool isEnded(const Job& job) {
  return job.ended != nullptr && device::loadWordRelaxed(job.ended) != 0;
}

// One thread calls it, before it stores the completion word.
template <class Job>
__device__ __forceinline__ void tellReleased(const Job& job) {
  if (job.fault != nullptr) device::storeWordRelaxed(job.fault, kReleasedFault);
  if (job.ended != nullptr) device::storeWordRelaxed(job.ended, 1);
}

}  // namespace peerlane::kernel

#endif  // defined(__CUDACC__)
