// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/kernel/message/ring_slot_kernel.h"

#include <cuda_runtime.h>

#include "peerlane/program/kernel/launch/kernel_launch.h"
#include "peerlane/program/kernel/launch/launch_overlap_device.h"
#include "peerlane/program/kernel/launch/release_device.h"
#include "peerlane/program/words/copy_device.h"
#include "peerlane/program/words/word_device.h"

namespace peerlane::kernel {
namespace {

struct Slot {
  uint64_t address;
  uint64_t number;  // n + delta

  __device__ __forceinline__ uint64_t* word() const { return reinterpret_cast<uint64_t*>(address); }
};

__device__ __forceinline__ Slot slotOf(const RingSlotJob& job, const RingWord& word,
                                       uint64_t cursor) {
  const uint64_t slot = cursor & (job.slots - 1u);
  return {reinterpret_cast<uint64_t>(word.base) + slot * word.strideBytes,
          cursor + static_cast<int64_t>(word.delta)};
}

__global__ void __launch_bounds__(device::kWarpLanes, 1)
    ringSlotKernel(const __grid_constant__ RingSlotJob job) {
  awaitKernelBefore();
  // All loads that depend on no other are issued before the kernel waits for one: the words of all
  // slots together with the cursor. Mostly the wait was satisfied long before.
  const uint32_t lane = device::laneOfWarp();
  const uint64_t counted = job.cursorWord == nullptr ? 0 : device::loadWordRelaxed(job.cursorWord);
  const bool ended = job.tellsPeer && isEnded(job);
  const uint64_t mine =
      lane >= job.slots ? 0
                        : device::loadWordAcquire(reinterpret_cast<const uint64_t*>(
                              job.wait.base + static_cast<uint64_t>(lane) * job.wait.strideBytes));
  const uint64_t cursor = job.cursor + counted;
  const Slot awaited = slotOf(job, job.wait, cursor);
  const uint64_t seen =
      __shfl_sync(device::kAllLanes, mine, static_cast<int>(cursor & (job.slots - 1u)));
  bool live = !ended && !device::isPoisonWord(seen) && device::isAtLeast(seen, awaited.number);
  if (lane != 0) return;
  if (!live && !ended)
    live =
        device::waitWord(awaited.word(), awaited.number, job.abort) == device::Waited::kSatisfied;
  letKernelBehindBegin();
  if (job.advance != 0) *job.cursorWord = counted + job.advance;
  if (live) {
    const bool wrong =
        job.checkAt != 0 &&
        device::loadWordRelaxed(reinterpret_cast<const uint64_t*>(awaited.address + job.checkAt)) !=
            job.expected;
    if (wrong && job.fault != nullptr) device::storeWordRelaxed(job.fault, job.faultValue);
    const Slot told = slotOf(job, job.tell, cursor);
#pragma unroll
    for (uint32_t i = 0; i < kMostSlotValues; ++i)
      if (i < job.valueCount)
        device::storeWordRelaxed(reinterpret_cast<uint64_t*>(told.address + job.valuesAt + 8 * i),
                                 job.values[i]);
    if (job.tellsWrites) device::fenceSystem();
    device::storeWordRelaxed(told.word(), told.number);
  } else {
    tellReleased(job);
  }
  if (job.completion == nullptr) return;
  // The thread that reads the completion may free the memory of the words.
  device::fenceSystem();
  device::storeWordRelaxed(job.completion, job.completionValue);
}

const void* kernel() {
  return reinterpret_cast<const void*>(&ringSlotKernel);
}

}  // namespace

Status loadRingSlotKernels() {
  return loadKernel(kernel(), "a ring-slot kernel");
}

Status launchRingSlot(const RingSlotLaunch& launch) {
  PEERLANE_RETURN_IF_ERROR(checkRingSlot(launch));
  RingSlotJob job = launch.job;
  return launchKernel({.kernel = kernel(),
                       .ctas = 1,
                       .threads = device::kWarpLanes,
                       .overlapsEnd = launch.overlapsEnd,
                       .stream = launch.stream},
                      &job, "launching a ring-slot kernel");
}

}  // namespace peerlane::kernel
