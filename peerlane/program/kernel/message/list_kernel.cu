// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/kernel/message/list_kernel.h"

#include "peerlane/program/kernel/copy/copy_list_device.h"
#include "peerlane/program/kernel/launch/kernel_launch.h"
#include "peerlane/program/kernel/launch/launch_overlap_device.h"
#include "peerlane/program/kernel/launch/release_device.h"
#include "peerlane/program/kernel/message/named_copy_device.h"

namespace peerlane::kernel {
namespace {

// The kernel may read data that the host wrote before the launch while the kernel before it still
// runs. The read takes a round trip over PCIe, and the wait for the peer is mostly longer.
inline constexpr uint32_t kWordsAhead = 4;

// All threads call it. The peer reads the list only after the word of its slot is stored.
__device__ __forceinline__ void writeList(const ListHeadJob& job, uint64_t cursor,
                                          const uint64_t (&ahead)[kWordsAhead]) {
  uint64_t* const to = wordAt(slotOf(job, job.list, cursor));
#pragma unroll
  for (uint32_t j = 0; j < kWordsAhead; ++j) {
    const uint32_t i = threadIdx.x + j * blockDim.x;
    if (i < job.wordCount) device::storeWordRelaxed(to + i, ahead[j]);
  }
  for (uint32_t i = threadIdx.x + kWordsAhead * blockDim.x; i < job.wordCount; i += blockDim.x)
    device::storeWordRelaxed(to + i, device::loadWordRelaxed(job.words + i));
  __syncthreads();
  if (threadIdx.x != 0) return;
  const uint64_t slot = slotOf(job, job.tell, cursor);
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i)
    device::storeWordRelaxed(wordAt(slot + job.valuesAt[i]), job.values[i]);
  device::fenceSystem();  // covers the stores of all threads, which are before the barrier
}

__global__ void __launch_bounds__(kNamedThreads, 1)
    listHeadKernel(const __grid_constant__ ListHeadJob job) {
  uint64_t ahead[kWordsAhead];
#pragma unroll
  for (uint32_t j = 0; j < kWordsAhead; ++j) {
    const uint32_t i = threadIdx.x + j * blockDim.x;
    ahead[j] = i < job.wordCount ? device::loadWordRelaxed(job.words + i) : 0;
  }
  // If its slot is free already, the list is written while the kernel before ends, and only its
  // word has to wait for that end.
  bool isWritten = false;
  if (job.cursorWord == nullptr) {
    if (threadIdx.x == 0 && !isEnded(job)) {
      const uint64_t free = device::loadWordAcquire(wordAt(slotOf(job, job.wait, job.cursor)));
      isWritten =
          !device::isPoisonWord(free) && device::isAtLeast(free, numberOf(job.wait, job.cursor));
    }
    isWritten = __syncthreads_or(isWritten) != 0;
    if (isWritten) writeList(job, job.cursor, ahead);
  }
  awaitKernelBefore();
  const uint64_t counted = job.cursorWord == nullptr ? 0 : device::loadWordRelaxed(job.cursorWord);
  const uint64_t cursor = job.cursor + counted;
  bool released = false;
  if (threadIdx.x == 0)
    released = isEnded(job) ||
               device::waitWord(wordAt(slotOf(job, job.wait, cursor)), numberOf(job.wait, cursor),
                                job.abort) == device::Waited::kReleased;
  released = __syncthreads_or(released) != 0;
  letKernelBehindBegin();
  if (!released && !isWritten) writeList(job, cursor, ahead);
  if (threadIdx.x != 0) return;
  if (job.advance != 0) *job.cursorWord = counted + job.advance;
  if (!released) {
    device::storeWordRelaxed(wordAt(slotOf(job, job.tell, cursor)), numberOf(job.tell, cursor));
  } else {
    tellReleased(job);
  }
  if (job.completion == nullptr) return;
  device::fenceSystem();  // its reader may free the memory of the words
  device::storeWordRelaxed(job.completion, job.completionValue);
}

__device__ __forceinline__ LocalPiece localPiece(const ListPutJob& job, uint32_t i) {
  const auto* const words = reinterpret_cast<const uint64_t*>(job.pieces + i);
  return {reinterpret_cast<const std::byte*>(device::loadWordRelaxed(words)),
          device::loadWordRelaxed(words + 1), device::loadWordRelaxed(words + 2)};
}

// Everything but the places, which the receiver has not sent yet.
__device__ __forceinline__ void writeLocal(const ListPutJob& job, const LocalPiece& first) {
  for (uint32_t i = threadIdx.x; i < job.count; i += blockDim.x) {
    const LocalPiece piece = i == threadIdx.x ? first : localPiece(job, i);
    job.room.pieces[i].from = piece.from;
    job.room.pieces[i].bytes = piece.bytes;
    job.room.tileEnds[i] = piece.tileEnd;
  }
}

// By one block, after writeLocal(). All threads get the verdict.
__device__ __forceinline__ PutPlace::Verdict findPlaces(const ListPutJob& job, uint64_t cursor) {
  __shared__ uint64_t bases[PieceNames::kMostRegions], rooms[PieceNames::kMostRegions];
  __shared__ uint32_t regions;
  const uint64_t slot = slotOf(job, job.wait, cursor);
  bool released = false, wrong = false;
  if (threadIdx.x == 0) {
    released = isEnded(job) || device::waitWord(wordAt(slot), numberOf(job.wait, cursor),
                                                job.abort) == device::Waited::kReleased;
    if (!released) {
      const uint64_t named = device::loadWordRelaxed(wordAt(slot + job.regionsAt));
      wrong = device::loadWordRelaxed(wordAt(slot + job.checkAt)) != job.expected ||
              named > PieceNames::kMostRegions;
      regions = static_cast<uint32_t>(named);
    }
  }
  released = __syncthreads_or(released) != 0;
  letKernelBehindBegin();  // the device sets it up while this one looks up the places
  if (released) return PutPlace::kReleased;
  if (__syncthreads_or(wrong)) return PutPlace::kFault;
  const uint64_t* const names = wordAt(slotOf(job, job.list, cursor));
  const uint32_t warp = threadIdx.x / device::kWarpLanes;
  for (uint32_t i = warp; i < regions && !released; i += blockDim.x / device::kWarpLanes) {
    const LatePlace region = findRegion(
        job.table,
        {device::loadWordRelaxed(names + 2 * i), device::loadWordRelaxed(names + 2 * i + 1), 0},
        job.abort);
    released = !region.isFound;
    if (device::laneOfWarp() == 0) {
      bases[i] = region.address;
      rooms[i] = region.room;
    }
  }
  if (__syncthreads_or(released)) return PutPlace::kReleased;
  const uint64_t* const places = names + 2 * regions;
  for (uint32_t i = threadIdx.x; i < job.count; i += blockDim.x) {
    const uint64_t place = device::loadWordRelaxed(places + i);
    const uint64_t region = PieceNames::regionOf(place), offset = PieceNames::offsetOf(place);
    const uint64_t bytes = job.room.pieces[i].bytes;
    if (region >= regions || offset > rooms[region] || bytes > rooms[region] - offset)
      wrong = true;
    else
      job.room.pieces[i].to = reinterpret_cast<std::byte*>(bases[region] + offset);
  }
  return __syncthreads_or(wrong) ? PutPlace::kFault : PutPlace::kGo;
}

__device__ __forceinline__ void copyPieces(const ListPutJob& job) {
  __shared__ EntryStage<kNamedThreads> stages[2];
  ListedPieces source;
  source.list = {.pieces = job.room.pieces,
                 .tileEnds = job.room.tileEnds,
                 .count = job.count,
                 .tiles = job.tiles,
                 .isFar = job.room.isFar};
  const uint32_t warp = threadIdx.x / device::kWarpLanes;
  const uint32_t warps = blockDim.x / device::kWarpLanes;
  walkEntries(
      source, job.tiles * blockIdx.x / gridDim.x, job.tiles * (blockIdx.x + 1) / gridDim.x, stages,
      [] { return true; },
      [&](const EntryStage<kNamedThreads>& stage, uint32_t staged, uint64_t firstTile,
          uint64_t begin, uint64_t end) {
        uint32_t entry = 0;
#pragma unroll 1
        for (uint64_t tile = begin + warp; tile < end; tile += warps) {
          entry = entryOfTile(stage, staged, entry, tile);
          const uint64_t entryBegin = entry == 0 ? firstTile : stage.tileEnd[entry - 1];
          device::warpCopyTile(stage.from[entry], stage.to[entry], stage.bytes[entry],
                               tile - entryBegin, stage.tileEnd[entry] - entryBegin);
        }
      });
}

template <NamedPart kPart>
__global__ void __launch_bounds__(kNamedThreads, 1)
    listPutKernel(const __grid_constant__ ListPutJob job) {
  LocalPiece first{};
  if (kPart != NamedPart::kCopy && threadIdx.x < job.count) first = localPiece(job, threadIdx.x);
  awaitKernelBefore();
  const uint64_t counted = job.cursorWord == nullptr ? 0 : device::loadWordRelaxed(job.cursorWord);
  const uint64_t cursor = job.cursor + counted;
  uint64_t verdict;
  if constexpr (kPart == NamedPart::kCopy) {
    verdict = job.place->verdict;
  } else {
    writeLocal(job, first);
    verdict = findPlaces(job, cursor);
    if (threadIdx.x == 0) {
      if (verdict == PutPlace::kFault && job.fault != nullptr)
        device::storeWordRelaxed(job.fault, job.faultValue);
      if constexpr (kPart == NamedPart::kFind) *job.place = {0, verdict};
    }
    if constexpr (kPart == NamedPart::kFind) return;
  }
  if constexpr (kPart == NamedPart::kCopy) letKernelBehindBegin();
  if (verdict == PutPlace::kGo) copyPieces(job);
  __syncthreads();
  if (threadIdx.x == 0 && isLastBlock(job.arrivals)) tellPut(job, counted, cursor, verdict);
}

const void* listKernelFor(NamedPart part) {
  switch (part) {
    case NamedPart::kFind: return reinterpret_cast<const void*>(&listPutKernel<NamedPart::kFind>);
    case NamedPart::kCopy: return reinterpret_cast<const void*>(&listPutKernel<NamedPart::kCopy>);
    case NamedPart::kAll: break;
  }
  return reinterpret_cast<const void*>(&listPutKernel<NamedPart::kAll>);
}

const void* headKernel() {
  return reinterpret_cast<const void*>(&listHeadKernel);
}

// A thread for each of them, up to a whole block.
uint32_t threadsFor(uint64_t count) {
  return static_cast<uint32_t>(
             std::clamp<uint64_t>((count + device::kWarpLanes - 1) / device::kWarpLanes, 1,
                                  kNamedThreads / device::kWarpLanes)) *
         device::kWarpLanes;
}

}  // namespace

Status loadListKernels() {
  PEERLANE_RETURN_IF_ERROR(loadKernel(headKernel(), "a list kernel"));
  for (const NamedPart part : {NamedPart::kAll, NamedPart::kFind, NamedPart::kCopy})
    PEERLANE_RETURN_IF_ERROR(loadKernel(listKernelFor(part), "a list kernel"));
  return NamedCtas::find();
}

Status launchListHead(const ListHeadLaunch& launch) {
  PEERLANE_RETURN_IF_ERROR(checkListHead(launch));
  ListHeadJob job = launch.job;
  return launchKernel({.kernel = headKernel(),
                       .ctas = 1,
                       .threads = threadsFor(job.wordCount),
                       .overlapsEnd = launch.overlapsEnd,
                       .stream = launch.stream},
                      &job, "launching a list kernel");
}

Status launchListPut(const ListPutLaunch& launch) {
  PEERLANE_RETURN_IF_ERROR(checkListPut(launch));
  ListPutJob job = launch.job;
  const uint64_t bytes = job.tiles * kCopyTileBytes;
  KernelLaunch one{.kernel = listKernelFor(NamedPart::kAll),
                   .ctas = 1,
                   .threads = std::max(threadsFor(job.count), namedThreads(bytes)),
                   .overlapsEnd = launch.overlapsEnd,
                   .stream = launch.stream};
  if (job.tiles <= kAloneListTiles) return launchKernel(one, &job, "launching a list kernel");
  one.kernel = listKernelFor(NamedPart::kFind);
  one.threads = threadsFor(job.count);
  PEERLANE_RETURN_IF_ERROR(launchKernel(one, &job, "launching a list kernel"));
  one.kernel = listKernelFor(NamedPart::kCopy);
  one.ctas = NamedCtas::of(bytes, launch.ctas);
  one.threads = kNamedThreads;
  return launchKernel(one, &job, "launching a list kernel");
}

}  // namespace peerlane::kernel
