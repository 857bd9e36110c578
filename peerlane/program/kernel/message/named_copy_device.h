// SPDX-License-Identifier: Apache-2.0
//
// The common part of the kernels that copy between memory of their own side and a place that a slot
// of a ring names (put_kernel.h, get_kernel.h, list_kernel.h): the parts of a launch, how one warp
// waits and finds the place, and how many threads share the bytes. `Job`: the parameters of such a
// kernel.
#pragma once

#if defined(__CUDACC__)

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "peerlane/program/kernel/launch/release_device.h"
#include "peerlane/program/kernel/message/put_kernel.h"
#include "peerlane/program/kernel/message/region_lookup_device.h"
#include "peerlane/program/words/copy_device.h"
#include "peerlane/program/words/word_device.h"

namespace peerlane::kernel {

inline constexpr uint32_t kNamedThreads = 512;

// The part of the work that a launch does: a short message has one launch (kAll), a long one the
// other two.
enum class NamedPart { kAll, kFind, kCopy };

template <class Job>
__device__ __forceinline__ uint64_t slotOf(const Job& job, const RingWord& word, uint64_t cursor) {
  return reinterpret_cast<uint64_t>(word.base) + (cursor & (job.slots - 1u)) * word.strideBytes;
}

__device__ __forceinline__ uint64_t* wordAt(uint64_t address) {
  return reinterpret_cast<uint64_t*>(address);
}

// The number that a ring's word gets, or must reach, for message `cursor`.
__device__ __forceinline__ uint64_t numberOf(const RingWord& word, uint64_t cursor) {
  return cursor + static_cast<int64_t>(word.delta);
}

// By one warp.
template <class Job>
__device__ __forceinline__ PutPlace findNamed(const Job& job, uint64_t cursor) {
  const uint64_t slot = slotOf(job, job.wait, cursor);
  const bool released = isEnded(job) || device::waitWord(wordAt(slot), numberOf(job.wait, cursor),
                                                         job.abort) == device::Waited::kReleased;
  if (__any_sync(device::kAllLanes, released)) return {0, PutPlace::kReleased};
  const RegionQuery query = {device::loadWordRelaxed(wordAt(slot + job.allocationAt)),
                             device::loadWordRelaxed(wordAt(slot + job.generationAt)),
                             device::loadWordRelaxed(wordAt(slot + job.offsetAt))};
  bool wrong =
      job.checkAt != 0 && device::loadWordRelaxed(wordAt(slot + job.checkAt)) != job.expected;
  LatePlace late{};
  if (!wrong) {
    late = findRegion(job.table, query, job.abort);
    if (!late.isFound) return {0, PutPlace::kReleased};
    wrong = late.isFault || job.bytes > late.room;
  }
  if (!wrong) return {late.address, PutPlace::kGo};
  if (job.fault != nullptr && device::laneOfWarp() == 0)
    device::storeWordRelaxed(job.fault, job.faultValue);
  return {0, PutPlace::kFault};
}

// The warps of this block copy its tiles.
__device__ __forceinline__ void copyShare(const std::byte* from, std::byte* to, uint64_t bytes) {
  const uint64_t tiles = copyTiles(bytes);
  const uint64_t end = tiles * (blockIdx.x + 1) / gridDim.x;
  for (uint64_t tile = tiles * blockIdx.x / gridDim.x + threadIdx.x / device::kWarpLanes;
       tile < end; tile += blockDim.x / device::kWarpLanes)
    device::warpCopyTile(from, to, bytes, tile, tiles);
}

// One thread of each block calls it, after a barrier. True in the last block that arrives: the
// stores of all blocks are visible to it, so its system-wide fence covers them.
__device__ __forceinline__ bool isLastBlock(uint32_t* arrivals) {
  if (gridDim.x == 1) return true;
  device::fenceDevice();
  if (atomicAdd(arrivals, 1) + 1 != gridDim.x) return false;
  *arrivals = 0;
  return true;
}

// The thread that isLastBlock() has chosen calls it: advances the cursor, stores the words that
// tell the peer, then the completion word.
template <class Job>
__device__ __forceinline__ void tellPut(const Job& job, uint64_t counted, uint64_t cursor,
                                        uint64_t verdict) {
  if (job.advance != 0) *job.cursorWord = counted + job.advance;
  if (verdict != PutPlace::kReleased) {
    const uint64_t slot = slotOf(job, job.tell, cursor);
    device::storeWordRelaxed(wordAt(slot + job.valueAt), job.value);
    device::fenceSystem();
    device::storeWordRelaxed(wordAt(slot), numberOf(job.tell, cursor));
  } else {
    tellReleased(job);
  }
  if (job.completion == nullptr) return;
  device::fenceSystem();  // its reader may free the memory of the words
  device::storeWordRelaxed(job.completion, job.completionValue);
}

// --- Host ---

inline uint32_t namedThreads(uint64_t bytes) {
  return static_cast<uint32_t>(std::clamp<uint64_t>((bytes + kCopyTileBytes - 1) / kCopyTileBytes,
                                                    1, kNamedThreads / device::kWarpLanes) *
                               device::kWarpLanes);
}

// The number of multiprocessors of each device, found when the kernels are loaded.
class NamedCtas {
 public:
  static Status find() {
    int index = 0, count = 0;
    if (cudaGetDevice(&index) != cudaSuccess || index >= kMaxDevices ||
        cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, index) != cudaSuccess)
      return Status(Code::kSystem, "asking for the multiprocessors");
    found_[index].store(static_cast<uint32_t>(count), std::memory_order_relaxed);
    return Status::ok();
  }
  // One tile for each warp, as for other copies of one piece. If `wanted` is not 0, it is the
  // result.
  static uint32_t of(uint64_t bytes, uint32_t wanted) {
    if (wanted != 0) return wanted;
    constexpr uint64_t kPerCta = kNamedThreads / device::kWarpLanes * kCopyTileBytes;
    int index = 0;
    const bool known = cudaGetDevice(&index) == cudaSuccess && index < kMaxDevices;
    const uint32_t most = known ? found_[index].load(std::memory_order_relaxed) : 0;
    return static_cast<uint32_t>(
        std::clamp<uint64_t>((bytes + kPerCta - 1) / kPerCta, 1, std::max(most, 1u)));
  }

 private:
  static constexpr int kMaxDevices = 128;
  static inline std::atomic<uint32_t> found_[kMaxDevices];
};

}  // namespace peerlane::kernel

#endif  // defined(__CUDACC__)
