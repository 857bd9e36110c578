// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/kernel/message/step_kernel.h"

#include <cuda_runtime.h>

#include "peerlane/program/kernel/launch/kernel_launch.h"
#include "peerlane/program/kernel/launch/launch_overlap_device.h"
#include "peerlane/program/kernel/launch/release_device.h"
#include "peerlane/program/kernel/launch/word_step_device.h"
#include "peerlane/program/kernel/message/step_job.h"
#include "peerlane/program/kernel/message/step_place_device.h"
#include "peerlane/program/words/copy_device.h"

namespace peerlane::kernel {
namespace {

static_assert(sizeof(StepJob) <= 1024, "parameters are copied with every launch");

// Each phase has a part of the arrivals: CTAs in its lower byte, released ones in its upper.
inline constexpr uint32_t kArrivalBits = 16;
inline constexpr uint32_t kReleasedUnit = 1u << 8;

// This thread's unit of a copy that one round does.
__device__ __forceinline__ uint4 loadUnit(const StepItem& item, uint64_t cursor) {
  uint4 unit{};
  const uint32_t at = threadIdx.x * item.unitBytes;
  if (at >= item.bytes) return unit;
  const uint64_t from = addressOf(item.from, cursor) + at;
  if (item.unitBytes == 16) {
    unit = device::loadVector(reinterpret_cast<const void*>(from));
  } else if (item.unitBytes == 8) {
    asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(unit.x), "=r"(unit.y)
                 : "l"(from)
                 : "memory");
  } else {
    unit.x = device::loadByte(reinterpret_cast<const std::byte*>(from));
  }
  return unit;
}

__device__ __forceinline__ void storeUnit(const StepItem& item, uint64_t cursor,
                                          const uint4& unit) {
  const uint32_t at = threadIdx.x * item.unitBytes;
  if (at >= item.bytes) return;
  const uint64_t to = addressOf(item.to, cursor) + at;
  if (item.unitBytes == 16)
    device::storeVector(reinterpret_cast<void*>(to), unit);
  else if (item.unitBytes == 8)
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(unit.x), "r"(unit.y) : "memory");
  else
    device::storeByte(reinterpret_cast<std::byte*>(to), unit.x);
}

__device__ inline void storeFault(const StepJob& job) {
  if (job.fault != nullptr) device::storeWordRelaxed(job.fault, job.faultValue);
}

// The warps of this block copy its tiles. False if a late place reaches outside its region.
__device__ __forceinline__ bool copyTilesOf(const StepItem& item, uint64_t cursor,
                                            const LatePlace& late) {
  if (item.lateTo || item.lateFrom) {
    const uint64_t at = item.lateTo ? item.to.at : item.from.at;
    const uint64_t other = item.lateTo && item.lateFrom ? item.from.at : at;
    const uint64_t furthest = at > other ? at : other;
    if (furthest > late.room || item.bytes > late.room - furthest) return false;
  }
  const uint64_t from = (item.lateFrom ? late.address : 0) + addressOf(item.from, cursor);
  const uint64_t to = (item.lateTo ? late.address : 0) + addressOf(item.to, cursor);
  const uint64_t tiles = copyTiles(item.bytes);
  const uint64_t end = tiles * (blockIdx.x + 1) / gridDim.x;
  for (uint64_t tile = tiles * blockIdx.x / gridDim.x + threadIdx.x / device::kWarpLanes;
       tile < end; tile += blockDim.x / device::kWarpLanes)
    device::warpCopyTile(reinterpret_cast<const std::byte*>(from), reinterpret_cast<std::byte*>(to),
                         item.bytes, tile, tiles);
  return true;
}

// True if the word of a check has another value than it must have.
__device__ __forceinline__ bool isOther(const StepItem& item, uint64_t cursor) {
  return device::loadWordRelaxed(wordOf(item, cursor)) != valueOf(item, cursor);
}

// Waits, checks and copies of a phase; all threads of the block call it. False if a wait was
// released.
template <bool kByTiles>
__device__ __forceinline__ bool runPhase(const StepJob& job, const StepPhase& phase,
                                         uint64_t cursor, bool isLast, LatePlace& late,
                                         bool& faulted) {
  const uint32_t checks = phase.first + phase.waits, copies = checks + phase.checks;
  const bool holds = blockIdx.x == 0;  // copies of one round are the first block's
  uint4 held[kHeldCopies];
  auto load = [&](uint32_t i, bool early) {
    if (i >= phase.copies || !holds) return;
    const StepItem& item = job.items[copies + i];
    if (item.early == early && (!kByTiles || item.unitBytes != 0)) held[i] = loadUnit(item, cursor);
  };
#pragma unroll
  for (uint32_t i = 0; i < kHeldCopies; ++i) held[i] = uint4{}, load(i, true);
  if (phase.waits > 0) {
    bool released = false;
    if (threadIdx.x == 0)
      for (uint32_t i = phase.first; i < checks && !released; ++i)
        released = device::waitWord(wordOf(job.items[i], cursor), valueOf(job.items[i], cursor),
                                    job.abort) == device::Waited::kReleased;
    if (__syncthreads_or(released)) return false;
  }
  // Not earlier: the launch that begins occupies the device, and the work that ends the wait may
  // need the device.
  if (isLast && !phase.late) letKernelBehindBegin();
#pragma unroll
  for (uint32_t i = 0; i < kHeldCopies; ++i) load(i, false);
  if (phase.checks > 0) {
    const bool wrong =
        threadIdx.x < phase.checks && isOther(job.items[checks + threadIdx.x], cursor);
    if (wrong) storeFault(job);
    faulted |= __syncthreads_or(wrong) != 0;
  }
  if constexpr (kByTiles) {
    if (phase.late && !faulted) {
      const bool looks = threadIdx.x < device::kWarpLanes && !late.isFound;
      __syncthreads();  // all threads have read it before one writes it
      if (looks) {
        const LatePlace found = findPlace(job, cursor);
        if (threadIdx.x == 0) late = found;
      }
      __syncthreads();
      if (!late.isFound) return false;
      faulted |= late.isFault;
      if (late.isFault && threadIdx.x == 0) storeFault(job);
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < kHeldCopies; ++i) {
    if (i >= phase.copies || faulted) break;
    const StepItem& item = job.items[copies + i];
    if (!kByTiles || item.unitBytes != 0) {
      if (holds) storeUnit(item, cursor, held[i]);
    } else if (!copyTilesOf(item, cursor, late)) {
      faulted = true;
      if (threadIdx.x == 0) storeFault(job);
    }
  }
  return true;
}

// Stores of a phase and, after the last phase, the end of the launch; the last block that arrives
// calls it.
__device__ __forceinline__ void finishPhase(const StepJob& job, const StepPhase& phase,
                                            uint64_t cursor, bool isLast, bool released) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  bool fenced = false;
  auto fence = [&] {
    if (!fenced) device::fenceSystem();
    fenced = true;
  };
  if (gridDim.x > 1) {
    const uint32_t shift = phase.arrival * kArrivalBits;
    const uint32_t mine = (1 + (released ? kReleasedUnit : 0)) << shift;
    device::fenceDevice();  // the last block's system-wide fence covers these stores
    const uint32_t part = ((atomicAdd(job.arrivals, mine) + mine) >> shift) & 0xffff;
    if ((part & (kReleasedUnit - 1)) != gridDim.x) return;
    atomicSub(job.arrivals, part << shift);
    released = part >= kReleasedUnit;
    fence();
  }
  if (!released) {
    const uint32_t first = phase.first + phase.waits + phase.checks + phase.copies;
    for (uint32_t i = first; i < first + phase.stores; ++i) {
      const StepItem& item = job.items[i];
      // Without a fence: this block stored the bytes that it had read before the barrier, so its
      // reads had ended by then.
      if (!item.readsOnly) fence();
      device::storeWordRelaxed(wordOf(item, cursor), valueOf(item, cursor));
    }
  }
  if (!isLast) return;
  if (released) tellReleased(job);
  if (job.completion.word != nullptr) {
    fence();
    device::storeWordRelaxed(job.completion.word, operandNow(job.completion.value));
  }
  if (job.cursorWord != nullptr) *job.cursorWord = cursor + job.advance;
}

template <bool kByTiles>
__global__ void __launch_bounds__(kStepThreads, 1) stepKernel(const __grid_constant__ StepJob job) {
  __shared__ LatePlace late;
  awaitKernelBefore();
  if constexpr (kByTiles) {
    if (threadIdx.x == 0) late.isFound = false;
    __syncthreads();
  }
  const uint64_t cursor =
      job.cursorWord == nullptr ? job.cursor : device::loadWordRelaxed(job.cursorWord);
  bool live = true, faulted = false;
  if (job.ended != nullptr) live = __syncthreads_or(threadIdx.x == 0 && isEnded(job)) == 0;
#pragma unroll 1
  for (uint32_t i = 0; i < job.phaseCount; ++i) {
    const StepPhase& phase = job.phases[i];
    if (live) live = runPhase<kByTiles>(job, phase, cursor, i + 1 == job.phaseCount, late, faulted);
    if (phase.arrival != kNoArrival)
      finishPhase(job, phase, cursor, i + 1 == job.phaseCount, !live);
  }
}

}  // namespace

Status loadStepKernels() {
  for (const void* kernel : {reinterpret_cast<const void*>(&stepKernel<false>),
                             reinterpret_cast<const void*>(&stepKernel<true>)})
    PEERLANE_RETURN_IF_ERROR(loadKernel(kernel, "a step kernel"));
  return Status::ok();
}

Status launchSteps(const StepLaunch& launch) {
  StepJob job;
  StepShape shape;
  PEERLANE_RETURN_IF_ERROR(makeStepJob(launch, job, shape));
  return launchKernel({.kernel = shape.byTiles ? reinterpret_cast<const void*>(&stepKernel<true>)
                                               : reinterpret_cast<const void*>(&stepKernel<false>),
                       .ctas = shape.ctas,
                       .threads = shape.threads,
                       .overlapsEnd = launch.overlapsEnd,
                       .stream = launch.stream},
                      &job, "launching a step kernel");
}

}  // namespace peerlane::kernel
