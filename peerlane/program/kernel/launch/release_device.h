// SPDX-License-Identifier: Apache-2.0
//
// How kernels of messages are let go, and what they leave to those behind them. `Job` is one of
// theirs: `fault` and `ended` as in TurnJob.
#pragma once

#if defined(__CUDACC__)

#include <cstdint>

#include "peerlane/program/model/op.h"
#include "peerlane/program/words/word_device.h"

namespace peerlane::kernel {

// Another stream may just be storing it: threads that have to agree make one of them look.
template <class Job>
__device__ __forceinline__ bool isEnded(const Job& job) {
  return job.ended != nullptr && device::loadWordRelaxed(job.ended) != 0;
}

// By one thread, before the completion.
template <class Job>
__device__ __forceinline__ void tellReleased(const Job& job) {
  if (job.fault != nullptr) device::storeWordRelaxed(job.fault, kReleasedFault);
  if (job.ended != nullptr) device::storeWordRelaxed(job.ended, 1);
}

}  // namespace peerlane::kernel

#endif  // defined(__CUDACC__)
