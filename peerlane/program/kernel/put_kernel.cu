// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/kernel/put_kernel.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>

#include "peerlane/program/copy_device.h"
#include "peerlane/program/kernel/kernel_launch.h"
#include "peerlane/program/kernel/launch_overlap_device.h"
#include "peerlane/program/kernel/region_lookup_device.h"
#include "peerlane/program/word_device.h"

namespace peerlane::kernel {
namespace {

constexpr uint32_t kPutThreads = 512;

// What this part of the launch does.
enum class Part { kAll, kFind, kCopy };

__device__ __forceinline__ uint64_t slotOf(const PutJob& job, const TurnWord& word,
                                           uint64_t cursor) {
  return reinterpret_cast<uint64_t>(word.base) + (cursor & (job.slots - 1u)) * word.strideBytes;
}

__device__ __forceinline__ uint64_t* wordAt(uint64_t address) {
  return reinterpret_cast<uint64_t*>(address);
}

// By one warp.
__device__ __forceinline__ PutPlace findPlace(const PutJob& job, uint64_t cursor) {
  const uint64_t slot = slotOf(job, job.wait, cursor);
  const bool released =
      device::waitWord(wordAt(slot), cursor + static_cast<int64_t>(job.wait.delta), job.abort) ==
      device::Waited::kReleased;
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

// The tiles of this block, by its warps.
__device__ __forceinline__ void copyShare(const PutJob& job, uint64_t to) {
  const uint64_t tiles = copyTiles(job.bytes);
  const uint64_t end = tiles * (blockIdx.x + 1) / gridDim.x;
  for (uint64_t tile = tiles * blockIdx.x / gridDim.x + threadIdx.x / device::kWarpLanes;
       tile < end; tile += blockDim.x / device::kWarpLanes)
    device::warpCopyTile(job.from, reinterpret_cast<std::byte*>(to), job.bytes, tile, tiles);
}

template <Part kPart>
__global__ void __launch_bounds__(kPutThreads, 1) putKernel(const __grid_constant__ PutJob job) {
  awaitKernelBefore();
  const uint64_t counted = job.cursorWord == nullptr ? 0 : device::loadWordRelaxed(job.cursorWord);
  const uint64_t cursor = job.cursor + counted;
  PutPlace place;
  if constexpr (kPart == Part::kCopy) {
    place = *job.place;
  } else {
    __shared__ PutPlace found;
    if (threadIdx.x < device::kWarpLanes) {
      const PutPlace mine = findPlace(job, cursor);
      if (threadIdx.x == 0) {
        if constexpr (kPart == Part::kFind)
          *job.place = mine;
        else
          found = mine;
      }
    }
    if constexpr (kPart == Part::kFind) {
      letKernelBehindBegin();
      return;
    }
    __syncthreads();
    place = found;
  }
  letKernelBehindBegin();
  if (place.verdict == PutPlace::kGo) copyShare(job, place.address);
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (gridDim.x > 1) {
    device::fenceDevice();  // the last block's fence for the system covers it
    if (atomicAdd(job.arrivals, 1) + 1 != gridDim.x) return;
    *job.arrivals = 0;
  }
  if (job.advance != 0) *job.cursorWord = counted + job.advance;
  if (place.verdict != PutPlace::kReleased) {
    const uint64_t slot = slotOf(job, job.tell, cursor);
    device::storeWordRelaxed(wordAt(slot + job.valueAt), job.value);
    device::fenceSystem();
    device::storeWordRelaxed(wordAt(slot), cursor + static_cast<int64_t>(job.tell.delta));
  }
  if (job.completion == nullptr) return;
  device::fenceSystem();  // whoever reads it may take away the memory of the words
  device::storeWordRelaxed(job.completion, job.completionValue);
}

const void* kernelFor(Part part) {
  switch (part) {
    case Part::kFind: return reinterpret_cast<const void*>(&putKernel<Part::kFind>);
    case Part::kCopy: return reinterpret_cast<const void*>(&putKernel<Part::kCopy>);
    case Part::kAll: break;
  }
  return reinterpret_cast<const void*>(&putKernel<Part::kAll>);
}

constexpr int kMaxDevices = 128;
std::atomic<uint32_t> multiprocessors[kMaxDevices];  // found by loadPutKernels()

// A tile for each warp, as for other copies of one piece.
uint32_t ctasFor(const PutLaunch& launch) {
  if (launch.ctas != 0) return launch.ctas;
  constexpr uint64_t kPerCta = kPutThreads / device::kWarpLanes * kCopyTileBytes;
  int index = 0;
  const bool known = cudaGetDevice(&index) == cudaSuccess && index < kMaxDevices;
  const uint32_t most = known ? multiprocessors[index].load(std::memory_order_relaxed) : 0;
  return static_cast<uint32_t>(
      std::clamp<uint64_t>((launch.job.bytes + kPerCta - 1) / kPerCta, 1, std::max(most, 1u)));
}

uint32_t threadsFor(uint64_t bytes) {
  return static_cast<uint32_t>(std::clamp<uint64_t>((bytes + kCopyTileBytes - 1) / kCopyTileBytes,
                                                    1, kPutThreads / device::kWarpLanes) *
                               device::kWarpLanes);
}

}  // namespace

Status loadPutKernels() {
  for (const Part part : {Part::kAll, Part::kFind, Part::kCopy})
    PEERLANE_RETURN_IF_ERROR(loadKernel(kernelFor(part), "a put kernel"));
  int index = 0, count = 0;
  if (cudaGetDevice(&index) != cudaSuccess || index >= kMaxDevices ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, index) != cudaSuccess)
    return Status(Code::kSystem, "asking for the multiprocessors");
  multiprocessors[index].store(static_cast<uint32_t>(count), std::memory_order_relaxed);
  return Status::ok();
}

Status launchPut(const PutLaunch& launch) {
  PEERLANE_RETURN_IF_ERROR(checkPut(launch));
  PutJob job = launch.job;
  KernelLaunch one{.kernel = kernelFor(Part::kAll),
                   .ctas = 1,
                   .threads = threadsFor(job.bytes),
                   .overlapsEnd = launch.overlapsEnd,
                   .stream = launch.stream};
  if (job.bytes <= kAlonePutBytes) return launchKernel(one, &job, "launching a put kernel");
  one.kernel = kernelFor(Part::kFind);
  one.threads = device::kWarpLanes;
  PEERLANE_RETURN_IF_ERROR(launchKernel(one, &job, "launching a put kernel"));
  one.kernel = kernelFor(Part::kCopy);
  one.ctas = ctasFor(launch);
  one.threads = kPutThreads;
  return launchKernel(one, &job, "launching a put kernel");
}

}  // namespace peerlane::kernel
