// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/kernel/copy/bulk_copy_device.h"
#include "peerlane/program/kernel/copy/copy_job_device.h"
#include "peerlane/program/kernel/copy/copy_list_device.h"
#include "peerlane/program/kernel/launch/launch_overlap_device.h"
#include "peerlane/program/kernel/launch/word_step_device.h"

namespace peerlane::kernel {
namespace {

inline constexpr uint32_t kStagedEntries = 512;

__device__ __forceinline__ bool isReady(const CopyFrame& frame) {
  if (frame.wait.word == nullptr && frame.wait.abort == nullptr) return true;
  return __syncthreads_or(threadIdx.x == 0 && !passesWait(frame.wait)) == 0;
}

// The last CTA to arrive does the tail. The fences of the others are for the device only: they
// order their bytes before their arrival. The last CTA's fence is for the whole system and covers
// everything that its own arrival made visible to it.
__device__ inline void finish(const CopyFrame& frame, bool released) {
  if (frame.tail.isEmpty()) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (gridDim.x > 1) {
    const uint32_t mine = 1 + (released ? kReleasedUnit : 0);
    device::fenceDevice();
    const uint32_t arrived = atomicAdd(frame.arrivals, mine) + mine;
    if ((arrived & (kReleasedUnit - 1)) != gridDim.x) return;
    *frame.arrivals = 0;
    released = arrived >= kReleasedUnit;
  }
  device::fenceSystem();
  performTail(frame.tail, released);
}

struct Share {
  uint64_t begin, end;      // tiles of this CTA
  uint32_t offset, stride;  // and of this warp among them
};

__device__ __forceinline__ Share shareOf(const CopyFrame& frame) {
  const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const uint64_t cta = blockIdx.x;
  const uint64_t begin = cta * frame.tilesPerCta + (cta < frame.tilesLeft ? cta : frame.tilesLeft);
  return {begin, begin + frame.tilesPerCta + (cta < frame.tilesLeft ? 1 : 0), warp, warps};
}

__global__ void __launch_bounds__(kMaxThreads)
    onePieceKernel(const __grid_constant__ CopyJob<OnePiece> job) {
  awaitKernelBefore();
  const bool ready = isReady(job.frame);
  if (ready) {
    // Interleaved, so that all thread blocks work near each other in memory; with few blocks that
    // is faster.
    const CopyPiece& piece = job.source.piece;
    const uint64_t tiles = copyTiles(piece.bytes);
    const uint32_t warps = blockDim.x / device::kWarpLanes;
#pragma unroll 1
    for (uint64_t tile = uint64_t{blockIdx.x} * warps + threadIdx.x / device::kWarpLanes;
         tile < tiles; tile += uint64_t{gridDim.x} * warps)
      device::warpCopyTile(piece.from, piece.to, piece.bytes, tile, tiles);
  }
  finish(job.frame, !ready);
}

template <class Source>
__global__ void __launch_bounds__(kMaxThreads)
    listKernel(const __grid_constant__ CopyJob<Source> job) {
  awaitKernelBefore();
  __shared__ EntryStage<kStagedEntries> stages[2];
  const Share share = shareOf(job.frame);
  const bool ready = walkEntries(
      job.source, share.begin, share.end, stages, [&] { return isReady(job.frame); },
      [&](const EntryStage<kStagedEntries>& stage, uint32_t staged, uint64_t firstTile,
          uint64_t begin, uint64_t end) {
        uint32_t entry = 0;
#pragma unroll 1
        for (uint64_t tile = begin + share.offset; tile < end; tile += share.stride) {
          entry = entryOfTile(stage, staged, entry, tile);
          if (stage.to[entry] == nullptr) continue;
          const uint64_t entryBegin = entry == 0 ? firstTile : stage.tileEnd[entry - 1];
          device::warpCopyTile(stage.from[entry], stage.to[entry], stage.bytes[entry],
                               tile - entryBegin, stage.tileEnd[entry] - entryBegin);
        }
      });
  finish(job.frame, !ready);
}

template <uint32_t kBytes>
struct Vector;
template <>
struct Vector<16> {
  using Type = uint4;
  static __device__ Type load(const std::byte* from) { return device::loadVector(from); }
  static __device__ void store(std::byte* to, const Type& v) { device::storeVector(to, v); }
};
template <>
struct Vector<8> {
  using Type = uint64_t;
  static __device__ Type load(const std::byte* from) {
    return device::loadWordRelaxed(reinterpret_cast<const uint64_t*>(from));
  }
  static __device__ void store(std::byte* to, Type v) {
    asm volatile("st.global.u64 [%0], %1;" ::"l"(to), "l"(v) : "memory");
  }
};
template <>
struct Vector<4> {
  using Type = uint32_t;
  static __device__ Type load(const std::byte* from) {
    uint32_t v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
  }
  static __device__ void store(std::byte* to, Type v) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
  }
};
template <>
struct Vector<1> {
  using Type = uint32_t;
  static __device__ Type load(const std::byte* from) { return device::loadByte(from); }
  static __device__ void store(std::byte* to, Type v) { device::storeByte(to, v); }
};

// Blocks too small to fill a warp's round: the vectors of all staged blocks are numbered through
// and dealt to the lanes. Here a block is one tile.
template <uint32_t kBytes>
__global__ void __launch_bounds__(kMaxThreads)
    smallBlocksKernel(const __grid_constant__ CopyJob<EqualBlocks> job) {
  awaitKernelBefore();
  __shared__ EntryStage<kStagedEntries> stages[2];
  const Share share = shareOf(job.frame);
  const uint32_t perBlock = static_cast<uint32_t>(job.source.list.blockBytes) / kBytes;
  const uint32_t divider = job.frame.divider;
  const bool ready = walkEntries(
      job.source, share.begin, share.end, stages, [&] { return isReady(job.frame); },
      [&](const EntryStage<kStagedEntries>& stage, uint32_t, uint64_t firstTile, uint64_t begin,
          uint64_t end) {
        const uint32_t skipped = static_cast<uint32_t>(begin - firstTile);
        const uint32_t total = static_cast<uint32_t>(end - begin) * perBlock;
        const uint32_t lane = device::laneOfWarp();
        for (uint32_t round = share.offset * device::kRoundVectors; round < total;
             round += share.stride * device::kRoundVectors) {
          typename Vector<kBytes>::Type v[device::kLoadsAhead];
          uint32_t block[device::kLoadsAhead];
#pragma unroll
          for (uint32_t j = 0; j < device::kLoadsAhead; ++j) {
            const uint32_t index = round + j * device::kWarpLanes + lane;
            block[j] = perBlock == 1 ? index : __umulhi(index, divider);
            if (index >= total) continue;
            const std::byte* from = stage.from[skipped + block[j]];
            if (from != nullptr)
              v[j] = Vector<kBytes>::load(from + (index - block[j] * perBlock) * kBytes);
          }
#pragma unroll
          for (uint32_t j = 0; j < device::kLoadsAhead; ++j) {
            const uint32_t index = round + j * device::kWarpLanes + lane;
            if (index >= total) continue;
            std::byte* to = stage.to[skipped + block[j]];
            if (to != nullptr)
              Vector<kBytes>::store(to + (index - block[j] * perBlock) * kBytes, v[j]);
          }
        }
      });
  finish(job.frame, !ready);
}

// Whole vectors by the ring, edges by the lanes; all of it by the lanes if the two sides lie
// differently.
template <class Ring>
__device__ __forceinline__ void moveByRing(Ring& ring, uint32_t lane, const std::byte* from,
                                           std::byte* to, uint64_t bytes) {
  const uint64_t fromAddress = reinterpret_cast<uintptr_t>(from);
  const uint64_t toAddress = reinterpret_cast<uintptr_t>(to);
  if (((fromAddress ^ toAddress) & 15) != 0) return device::warpCopy(from, to, bytes);
  const uint64_t edge = -toAddress & 15;
  const uint64_t head = edge < bytes ? edge : bytes;
  const uint64_t body = (bytes - head) & ~uint64_t{15};
  const uint64_t tail = bytes - head - body;
  if (lane == 0 && body != 0) ring.copy(from + head, to + head, body);
  if (lane < head) device::storeByte(to + lane, device::loadByte(from + lane));
  if (lane < tail)
    device::storeByte(to + head + body + lane, device::loadByte(from + head + body + lane));
}

template <class Source>
__global__ void __launch_bounds__(kBulkThreads)
    bulkKernel(const __grid_constant__ CopyJob<Source> job) {
#if __CUDA_ARCH__ >= 900
  awaitKernelBefore();
  extern __shared__ __align__(128) std::byte buffers[];
  __shared__ EntryStage<kBulkThreads> stages[2];
  __shared__ BulkRing<kBulkStages>::Slots slots[kBulkThreads / 32];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t bufferBytes = job.frame.bufferBytes;
  const uint64_t tilesAtOnce = bufferBytes / kCopyTileBytes;
  BulkRing<kBulkStages> ring(slots[warp], buffers + warp * kBulkStages * bufferBytes, bufferBytes);

  const Share share = shareOf(job.frame);
  const bool ready = walkEntries(
      job.source, share.begin, share.end, stages,
      [&] {
        const bool passed = isReady(job.frame);
        fenceBulkCopies();
        return passed;
      },
      [&](const EntryStage<kBulkThreads>& stage, uint32_t staged, uint64_t firstTile,
          uint64_t begin, uint64_t end) {
        const uint64_t mine = begin + (end - begin) * share.offset / share.stride;
        const uint64_t mineEnd = begin + (end - begin) * (share.offset + 1) / share.stride;
        uint32_t entry = 0;
        for (uint64_t tile = mine; tile < mineEnd;) {
          entry = entryOfTile(stage, staged, entry, tile);
          const uint64_t entryBegin = entry == 0 ? firstTile : stage.tileEnd[entry - 1];
          const uint64_t entryEnd = stage.tileEnd[entry], tiles = entryEnd - entryBegin;
          uint64_t upTo = tile + tilesAtOnce;
          if (upTo > entryEnd) upTo = entryEnd;
          if (upTo > mineEnd) upTo = mineEnd;
          if (stage.to[entry] == nullptr) {
            tile = upTo;
            continue;
          }
          const uint64_t to = reinterpret_cast<uintptr_t>(stage.to[entry]);
          const uint64_t bytes = stage.bytes[entry];
          const uint64_t first = copyTileBegin(to, bytes, tile - entryBegin, tiles);
          const uint64_t behind = copyTileBegin(to, bytes, upTo - entryBegin, tiles);
          moveByRing(ring, lane, stage.from[entry] + first, stage.to[entry] + first,
                     behind - first);
          tile = upTo;
        }
      });
  if (lane == 0) ring.finish();
  finish(job.frame, !ready);
#endif
}

template <class Function>
const void* address(Function* function) {
  return reinterpret_cast<const void*>(function);
}

}  // namespace

const void* threadKernelFor(CopySource source) {
  static const void* const kernels[kCopySources] = {
      address(&onePieceKernel),
      address(&listKernel<InlinePieces<kShortInlinePieces>>),
      address(&listKernel<InlinePieces<kMiddleInlinePieces>>),
      address(&listKernel<InlinePieces<kInlinePieces>>),
      address(&listKernel<ListedPieces>),
      address(&listKernel<EqualBlocks>)};
  return kernels[source];
}

const void* bulkKernelFor(CopySource source) {
  static const void* const kernels[kCopySources] = {
      address(&bulkKernel<OnePiece>),
      address(&bulkKernel<InlinePieces<kShortInlinePieces>>),
      address(&bulkKernel<InlinePieces<kMiddleInlinePieces>>),
      address(&bulkKernel<InlinePieces<kInlinePieces>>),
      address(&bulkKernel<ListedPieces>),
      address(&bulkKernel<EqualBlocks>)};
  return kernels[source];
}

const void* smallBlocksKernelFor(uint32_t width) {
  return width == 16  ? address(&smallBlocksKernel<16>)
         : width == 8 ? address(&smallBlocksKernel<8>)
         : width == 4 ? address(&smallBlocksKernel<4>)
                      : address(&smallBlocksKernel<1>);
}

}  // namespace peerlane::kernel
