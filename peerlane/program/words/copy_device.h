// SPDX-License-Identifier: Apache-2.0
//
// Copies as device code does them: a warp, or a block, moves `bytes` from one place in global
// memory (of this device, a peer's, pinned host memory) to another that does not overlap it. Any
// alignment, 64-bit sizes. Not a memcpy for the host, and not ordered by itself: other threads see
// the copied bytes after a fence, a barrier or the kernel's end, as for any store.
//
// Loads of vectors are plain loads. They see a peer's writes all the same: either this kernel has
// waited for them with an acquire, which empties the L1 cache, or the stream has waited before the
// kernel, and L1 is empty when a kernel begins. (Loads at system scope are 8 % slower where few
// thread blocks read.) Stores are whole 16-byte vectors. A source with another alignment is read in
// aligned vectors and shifted; no byte is read outside the aligned 16 bytes that hold bytes of the
// source.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/core/device_code.h"

namespace peerlane {

// The bytes that one warp copies at a time, 8 vectors per lane: the unit in which copies are shared
// out.
inline constexpr uint64_t kCopyTileBytes = 4096;
// Inner borders of tiles lie on multiples of this in the destination, so that warps write whole
// lines.
inline constexpr uint64_t kCopyLineBytes = 128;

// How many tiles a piece has: its size over the tile's, rounded; none if it is empty. The last tile
// takes the rest, so tiles have between 0.4 and 1.5 times the size.
PEERLANE_DEVICE constexpr uint64_t copyTiles(uint64_t bytes) {
  if (bytes == 0) return 0;
  const uint64_t tiles = bytes / kCopyTileBytes + (bytes % kCopyTileBytes >= kCopyTileBytes / 2);
  return tiles == 0 ? 1 : tiles;
}

// Where tile `tile` of `tiles` begins, in bytes from the beginning of its piece; with tile ==
// tiles, its end.
PEERLANE_DEVICE constexpr uint64_t copyTileBegin(uint64_t toAddress, uint64_t bytes, uint64_t tile,
                                                 uint64_t tiles) {
  if (tile == 0) return 0;
  if (tile >= tiles) return bytes;
  return tile * kCopyTileBytes - (toAddress & (kCopyLineBytes - 1));
}

}  // namespace peerlane

#if defined(__CUDACC__)

namespace peerlane::device {

inline constexpr uint32_t kAllLanes = 0xffffffff;
inline constexpr uint32_t kWarpLanes = 32;
inline constexpr uint32_t kVectorBytes = 16;
// Loads in flight per lane.
inline constexpr uint32_t kLoadsAhead = 8;
inline constexpr uint32_t kRoundVectors = kLoadsAhead * kWarpLanes;
// The same where vectors are shifted, which takes more registers.
inline constexpr uint32_t kShiftedAhead = 4;

__device__ __forceinline__ uint32_t laneOfWarp() {
  uint32_t lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

__device__ __forceinline__ uint4 loadVector(const void* from) {
  uint4 v;
  asm volatile("ld.weak.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

// Zeros when not `wanted`, because the compiler would keep a value that is only sometimes defined
// alive from one round to the next.
__device__ __forceinline__ uint4 loadVectorIf(bool wanted, const void* from) {
  uint4 v;
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.u32 p, %5, 0;\n"
      " mov.u32 %0, 0;\n mov.u32 %1, 0;\n mov.u32 %2, 0;\n mov.u32 %3, 0;\n"
      " @p ld.weak.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(from), "r"(static_cast<uint32_t>(wanted))
      : "memory");
  return v;
}

__device__ __forceinline__ void storeVector(void* to, const uint4& v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

__device__ __forceinline__ uint32_t loadByte(const std::byte* from) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}

__device__ __forceinline__ void storeByte(std::byte* to, uint32_t v) {
  asm volatile("st.global.u8 [%0], %1;" : : "l"(to), "r"(v) : "memory");
}

// Bytes `shift` to `shift` + 15 of the 32 that `low` and `high` make, shift < 16.
__device__ __forceinline__ uint4 joinVectors(const uint4& low, const uint4& high, uint32_t shift) {
  const bool by8 = (shift & 8) != 0, by4 = (shift & 4) != 0;
  const uint32_t a = by8 ? low.z : low.x, b = by8 ? low.w : low.y, c = by8 ? high.x : low.z,
                 d = by8 ? high.y : low.w, e = by8 ? high.z : high.x, f = by8 ? high.w : high.y;
  const uint32_t g = by4 ? b : a, h = by4 ? c : b, i = by4 ? d : c, j = by4 ? e : d,
                 k = by4 ? f : e;
  const uint32_t bits = (shift & 3) * 8;
  return {__funnelshift_r(g, h, bits), __funnelshift_r(h, i, bits), __funnelshift_r(i, j, bits),
          __funnelshift_r(j, k, bits)};
}

// Both sides aligned to 16 bytes. All lanes of the warp must call with the same arguments.
__device__ __forceinline__ void warpCopyAligned(const std::byte* from, std::byte* to,
                                                uint64_t vectors) {
  const uint32_t lane = laneOfWarp();
  from += lane * kVectorBytes;
  to += lane * kVectorBytes;
  constexpr uint32_t kStep = kWarpLanes * kVectorBytes;
#pragma unroll 1
  for (; vectors >= kRoundVectors; vectors -= kRoundVectors) {
    uint4 v[kLoadsAhead];
#pragma unroll
    for (uint32_t j = 0; j < kLoadsAhead; ++j) v[j] = loadVector(from + j * kStep);
#pragma unroll
    for (uint32_t j = 0; j < kLoadsAhead; ++j) storeVector(to + j * kStep, v[j]);
    from += kLoadsAhead * kStep;
    to += kLoadsAhead * kStep;
  }
  const uint32_t rest = static_cast<uint32_t>(vectors);
  uint4 v[kLoadsAhead];
#pragma unroll
  for (uint32_t j = 0; j < kLoadsAhead; ++j)
    v[j] = loadVectorIf(j * kWarpLanes + lane < rest, from + j * kStep);
#pragma unroll
  for (uint32_t j = 0; j < kLoadsAhead; ++j)
    if (j * kWarpLanes + lane < rest) storeVector(to + j * kStep, v[j]);
}

// `to` aligned to 16 bytes; the source begins `shift` (1 to 15) bytes after the aligned address
// `from`. Each lane reads one vector and gets the next one from its neighbour; the last lane of a
// round gets it from the first lane of the next round, and after the last round from one more
// vector that lane 0 reads.
__device__ __forceinline__ void warpCopyShifted(const std::byte* from, uint32_t shift,
                                                std::byte* to, uint64_t vectors) {
  const uint32_t lane = laneOfWarp();
  from += lane * kVectorBytes;
  to += lane * kVectorBytes;
  constexpr uint32_t kStep = kWarpLanes * kVectorBytes;
  constexpr uint32_t kRound = kShiftedAhead * kWarpLanes;
#pragma unroll 1
  while (vectors > 0) {
    const uint32_t round = vectors < kRound ? static_cast<uint32_t>(vectors) : kRound;
    uint4 v[kShiftedAhead + 1];
    // The vectors 0 to `round` hold the source of this round, both ends included.
#pragma unroll
    for (uint32_t j = 0; j <= kShiftedAhead; ++j)
      v[j] = loadVectorIf(j * kWarpLanes + lane <= round && (j < kShiftedAhead || lane == 0),
                          from + j * kStep);
#pragma unroll
    for (uint32_t j = 0; j < kShiftedAhead; ++j) {
      uint4 next = lane == 0 ? v[j + 1] : v[j];
      next.x = __shfl_sync(kAllLanes, next.x, lane + 1);
      next.y = __shfl_sync(kAllLanes, next.y, lane + 1);
      next.z = __shfl_sync(kAllLanes, next.z, lane + 1);
      next.w = __shfl_sync(kAllLanes, next.w, lane + 1);
      if (j * kWarpLanes + lane < round)
        storeVector(to + j * kStep, joinVectors(v[j], next, shift));
    }
    vectors -= round;
    from += kShiftedAhead * kStep;
    to += kShiftedAhead * kStep;
  }
}

// The warp copies `bytes`. All 32 lanes must call with the same arguments.
__device__ inline void warpCopy(const std::byte* from, std::byte* to, uint64_t bytes) {
  const uint32_t lane = laneOfWarp();
  uint32_t head = static_cast<uint32_t>(-reinterpret_cast<uintptr_t>(to)) & (kVectorBytes - 1);
  if (head > bytes) head = static_cast<uint32_t>(bytes);
  const uint64_t vectors = (bytes - head) / kVectorBytes;
  const uint32_t tail = static_cast<uint32_t>(bytes - head) & (kVectorBytes - 1);
  // Lanes 0 to 15 take the bytes before the first whole vector, 16 to 31 those after the last.
  const uint64_t edge = lane < 16 ? lane : bytes - tail + (lane - 16);
  const bool hasEdge = lane < 16 ? lane < head : lane - 16 < tail;
  uint32_t edgeByte = 0;
  if (hasEdge) edgeByte = loadByte(from + edge);
  const std::byte* source = from + head;
  const uint32_t shift =
      static_cast<uint32_t>(reinterpret_cast<uintptr_t>(source)) & (kVectorBytes - 1);
  if (shift == 0)
    warpCopyAligned(source, to + head, vectors);
  else
    warpCopyShifted(source - shift, shift, to + head, vectors);
  if (hasEdge) storeByte(to + edge, edgeByte);
}

// Tile `tile` of the `tiles` of a piece.
__device__ inline void warpCopyTile(const std::byte* from, std::byte* to, uint64_t bytes,
                                    uint64_t tile, uint64_t tiles) {
  const uint64_t address = reinterpret_cast<uintptr_t>(to);
  const uint64_t begin = copyTileBegin(address, bytes, tile, tiles);
  warpCopy(from + begin, to + begin, copyTileBegin(address, bytes, tile + 1, tiles) - begin);
}

// The block copies `bytes`, its warps tile by tile. All threads of a block of whole warps, one
// dimension, must call with the same arguments. No barrier inside.
__device__ inline void blockCopy(const std::byte* from, std::byte* to, uint64_t bytes) {
  const uint64_t tiles = copyTiles(bytes);
  for (uint64_t tile = threadIdx.x / kWarpLanes; tile < tiles; tile += blockDim.x / kWarpLanes)
    warpCopyTile(from, to, bytes, tile, tiles);
}

}  // namespace peerlane::device

#endif  // defined(__CUDACC__)
