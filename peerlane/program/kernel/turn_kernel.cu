// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/kernel/turn_kernel.h"

#include <cuda_runtime.h>

#include <string>

#include "peerlane/program/copy_device.h"
#include "peerlane/program/kernel/kernel_launch.h"
#include "peerlane/program/kernel/launch_overlap_device.h"
#include "peerlane/program/word_device.h"

namespace peerlane::kernel {
namespace {

constexpr uint32_t kTurnThreads = 256;
constexpr uint32_t kWarpBytes = 512;
constexpr uint32_t kAlsoLane = device::kWarpLanes - 1;

struct Slot {
  uint64_t address;
  uint64_t number;  // n + delta

  __device__ __forceinline__ uint64_t* word() const { return reinterpret_cast<uint64_t*>(address); }
};

__device__ __forceinline__ Slot slotOf(const TurnJob& job, const TurnWord& word, uint64_t cursor) {
  const uint64_t slot = cursor & (job.slots - 1u);
  return {reinterpret_cast<uint64_t>(word.base) + slot * word.strideBytes,
          cursor + static_cast<int64_t>(word.delta)};
}

// This thread's unit of what is copied.
__device__ __forceinline__ uint4 loadUnit(const TurnJob& job, uint64_t from) {
  uint4 unit{};
  const uint32_t at = threadIdx.x * job.unitBytes;
  if (at >= job.bytes) return unit;
  if (job.unitBytes == 16) return device::loadVector(reinterpret_cast<const void*>(from + at));
  asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];"
               : "=r"(unit.x), "=r"(unit.y)
               : "l"(from + at)
               : "memory");
  return unit;
}

__device__ __forceinline__ void storeUnit(const TurnJob& job, uint64_t to, const uint4& unit) {
  const uint32_t at = threadIdx.x * job.unitBytes;
  if (at >= job.bytes) return;
  if (job.unitBytes == 16) return device::storeVector(reinterpret_cast<void*>(to + at), unit);
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to + at), "r"(unit.x), "r"(unit.y)
               : "memory");
}

// What lies on no 8 bytes, by warps.
__device__ __forceinline__ void copyPart(const TurnJob& job, uint64_t from, uint64_t to) {
  const uint32_t at = threadIdx.x / device::kWarpLanes * kWarpBytes;
  if (at >= job.bytes) return;
  const uint32_t rest = job.bytes - at;
  device::warpCopy(reinterpret_cast<const std::byte*>(from + at),
                   reinterpret_cast<std::byte*>(to + at), rest < kWarpBytes ? rest : kWarpBytes);
}

__device__ __forceinline__ bool satisfies(uint64_t value, uint64_t wanted) {
  return !device::isPoisonWord(value) && device::isAtLeast(value, wanted);
}

// Every warp waits for itself, so that no barrier stands between the word and the bytes; all lanes
// load one address.
__device__ __forceinline__ bool isReleased(const Slot& slot, const uint64_t* abort) {
  const bool released =
      device::waitWord(slot.word(), slot.number, abort) == device::Waited::kReleased;
  return __any_sync(device::kAllLanes, released) != 0;
}

// The stores and what ends the launch, by one thread.
__device__ __forceinline__ void tell(const TurnJob& job, uint64_t cursor, bool live) {
  if (live) {
    const Slot first = slotOf(job, job.tell, cursor);
#pragma unroll
    for (uint32_t i = 0; i < kMostTurnValues; ++i)
      if (i < job.valueCount)
        device::storeWordRelaxed(reinterpret_cast<uint64_t*>(first.address + job.valuesAt + 8 * i),
                                 job.values[i]);
    // Without a fence where only reads are told: what this block has read was in registers when it
    // was stored, which was before the barrier.
    if (job.tellsWrites) device::fenceSystem();
    device::storeWordRelaxed(first.word(), first.number);
    if (job.tellAlso.base != nullptr) {
      const Slot second = slotOf(job, job.tellAlso, cursor);
      device::fenceSystem();
      device::storeWordRelaxed(second.word(), second.number);
    }
  }
  if (job.completion == nullptr) return;
  // Whoever reads it may take away the memory of the words. One that was stored behind the last
  // fence is this device's own.
  if (!live || job.tellAlso.base == nullptr) device::fenceSystem();
  device::storeWordRelaxed(job.completion, job.completionValue);
}

template <TurnCopy kCopy>
__global__ void __launch_bounds__(kTurnThreads, 1) turnKernel(const __grid_constant__ TurnJob job) {
  const uint32_t lane = device::laneOfWarp();
  awaitKernelBefore();
  // All loads that need no other are on their way before one is waited for.
  const uint64_t counted = job.cursorWord == nullptr ? 0 : device::loadWordRelaxed(job.cursorWord);
  uint4 held{};
  const auto local = reinterpret_cast<uint64_t>(job.local);
  if constexpr (kCopy == TurnCopy::kToRing)
    if (job.unitBytes != 0) held = loadUnit(job, local);
  uint64_t cursor;
  Slot awaited;
  bool passed, alsoPassed = false;
  if constexpr (kCopy == TurnCopy::kFromRing) {
    // Two words by one load: the last lane looks at the one that is waited for later.
    cursor = job.cursor + counted;
    awaited = slotOf(job, job.wait, cursor);
    const bool looksAhead = lane == kAlsoLane && job.also.base != nullptr;
    const Slot mine = looksAhead ? slotOf(job, job.also, cursor) : awaited;
    const uint32_t seen = __ballot_sync(
        device::kAllLanes, satisfies(device::loadWordAcquire(mine.word()), mine.number));
    passed = (seen & 1) != 0;
    alsoPassed = job.also.base != nullptr && (seen >> kAlsoLane) != 0;
  } else {
    // Mostly satisfied long ago: the words of all slots at once, while the cursor is on its way.
    const uint64_t mine =
        lane >= job.slots
            ? 0
            : device::loadWordAcquire(reinterpret_cast<const uint64_t*>(
                  job.wait.base + static_cast<uint64_t>(lane) * job.wait.strideBytes));
    cursor = job.cursor + counted;
    awaited = slotOf(job, job.wait, cursor);
    passed =
        satisfies(__shfl_sync(device::kAllLanes, mine, static_cast<int>(cursor & (job.slots - 1u))),
                  awaited.number);
  }
  const bool released = !passed && isReleased(awaited, job.abort);
  letKernelBehindBegin();
  bool wrong = false;
  if (!released) {
    if constexpr (kCopy == TurnCopy::kFromRing)
      if (job.unitBytes != 0) held = loadUnit(job, awaited.address + job.copyAt);
    if (job.checkAt != 0)
      wrong = device::loadWordRelaxed(
                  reinterpret_cast<const uint64_t*>(awaited.address + job.checkAt)) != job.expected;
  }
  if (kCopy != TurnCopy::kNone && !released && !wrong) {
    const bool isIn = kCopy == TurnCopy::kToRing;
    const uint64_t inRing =
        (isIn ? slotOf(job, job.tell, cursor).address : awaited.address) + job.copyAt;
    if (job.unitBytes != 0)
      storeUnit(job, isIn ? inRing : local, held);
    else
      copyPart(job, isIn ? local : inRing, isIn ? inRing : local);
  }
  bool live = __syncthreads_or(released) == 0;
  if (threadIdx.x != 0) return;
  if (job.advance != 0) *job.cursorWord = counted + job.advance;
  if (wrong && job.fault != nullptr) device::storeWordRelaxed(job.fault, job.faultValue);
  if (live && job.also.base != nullptr && !alsoPassed) {
    const Slot also = slotOf(job, job.also, cursor);
    live = device::waitWord(also.word(), also.number, job.abort) == device::Waited::kSatisfied;
  }
  tell(job, cursor, live);
}

const void* kernelFor(TurnCopy copy) {
  switch (copy) {
    case TurnCopy::kToRing: return reinterpret_cast<const void*>(&turnKernel<TurnCopy::kToRing>);
    case TurnCopy::kFromRing:
      return reinterpret_cast<const void*>(&turnKernel<TurnCopy::kFromRing>);
    case TurnCopy::kNone: break;
  }
  return reinterpret_cast<const void*>(&turnKernel<TurnCopy::kNone>);
}

}  // namespace

Status loadTurnKernels() {
  for (const TurnCopy copy : {TurnCopy::kNone, TurnCopy::kToRing, TurnCopy::kFromRing})
    PEERLANE_RETURN_IF_ERROR(loadKernel(kernelFor(copy), "a turn kernel"));
  return Status::ok();
}

Status launchTurn(const TurnLaunch& launch) {
  TurnLaunch shaped = launch;
  uint32_t threads = 0;
  PEERLANE_RETURN_IF_ERROR(shapeTurn(shaped, threads));
  return launchKernel({.kernel = kernelFor(launch.copy),
                       .ctas = 1,
                       .threads = threads,
                       .overlapsEnd = launch.overlapsEnd,
                       .stream = launch.stream},
                      &shaped.job, "launching a turn kernel");
}

}  // namespace peerlane::kernel
