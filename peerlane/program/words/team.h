// SPDX-License-Identifier: Apache-2.0
//
// Team: the threads that make a call of a port channel together: one thread, a warp, a block; or
// CPU threads that stand for the threads of a block. A team has rank(), size(), sync() (a barrier
// that also orders memory among its members), agree() (every member gets the value of rank 0),
// any() and copy(), which shares the bytes out. All members must call, with the same arguments. No
// state but that of a Crew.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/core/device_code.h"
#include "peerlane/program/words/copy_device.h"

#if !defined(__CUDACC__)
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstring>
#endif

namespace peerlane::port {

enum class TeamKind : uint32_t { kThread, kWarp, kBlock };
inline constexpr uint32_t kTeamKinds = 3;

#if defined(__CUDACC__)

struct ThisThread {
  static constexpr TeamKind kKind = TeamKind::kThread;
  __device__ static uint32_t rank() { return 0; }
  __device__ static uint32_t size() { return 1; }
  __device__ static void sync() {}
  __device__ static uint32_t agree(uint32_t value) { return value; }
  __device__ static bool any(bool value) { return value; }
  __device__ static void copy(std::byte* to, const std::byte* from, uint64_t bytes) {
    constexpr uint32_t kVector = 16;
    const auto at = [](const std::byte* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
    uint64_t done = 0;
    if ((at(to) - at(from)) % kVector == 0) {
      for (; done < bytes && at(to + done) % kVector != 0; ++done)
        device::storeByte(to + done, device::loadByte(from + done));
#pragma unroll 4
      for (; done + kVector <= bytes; done += kVector)
        device::storeVector(to + done, device::loadVector(from + done));
    }
    for (; done < bytes; ++done) device::storeByte(to + done, device::loadByte(from + done));
  }
};

// All 32 lanes of the warp.
struct ThisWarp {
  static constexpr TeamKind kKind = TeamKind::kWarp;
  __device__ static uint32_t rank() { return device::laneOfWarp(); }
  __device__ static uint32_t size() { return device::kWarpLanes; }
  __device__ static void sync() { __syncwarp(); }
  __device__ static uint32_t agree(uint32_t value) {
    __syncwarp();  // the exchange alone orders no memory
    return __shfl_sync(device::kAllLanes, value, 0);
  }
  __device__ static bool any(bool value) {
    __syncwarp();
    return __any_sync(device::kAllLanes, value ? 1 : 0) != 0;
  }
  __device__ static void copy(std::byte* to, const std::byte* from, uint64_t bytes) {
    device::warpCopy(from, to, bytes);
  }
};

// All threads of a block of one dimension and whole warps.
struct ThisBlock {
  static constexpr TeamKind kKind = TeamKind::kBlock;
  __device__ static uint32_t rank() { return threadIdx.x; }
  __device__ static uint32_t size() { return blockDim.x; }
  __device__ static void sync() { __syncthreads(); }
  // Values below 8.
  __device__ static uint32_t agree(uint32_t value) {
    const uint32_t mine = threadIdx.x == 0 ? value : 0;
    if (__syncthreads_or(static_cast<int>(mine)) == 0) return 0;
    uint32_t agreed = 0;
    for (uint32_t bit = 1; bit < 8; bit *= 2)
      if (__syncthreads_or(static_cast<int>(mine & bit)) != 0) agreed |= bit;
    return agreed;
  }
  __device__ static bool any(bool value) { return __syncthreads_or(value ? 1 : 0) != 0; }
  __device__ static void copy(std::byte* to, const std::byte* from, uint64_t bytes) {
    device::blockCopy(from, to, bytes);
  }
  // The share of block `index` of `count`.
  __device__ static void copyShare(std::byte* to, const std::byte* from, uint64_t bytes,
                                   uint32_t index, uint32_t count) {
    const uint64_t tiles = copyTiles(bytes);
    const uint32_t warps = blockDim.x / device::kWarpLanes;
    // Neighbouring tiles go to different blocks, so that few tiles keep all blocks busy.
    for (uint64_t tile = uint64_t{threadIdx.x / device::kWarpLanes} * count + index; tile < tiles;
         tile += uint64_t{warps} * count)
      device::warpCopyTile(from, to, bytes, tile, tiles);
  }
};

#else

struct ThisThread {
  static constexpr TeamKind kKind = TeamKind::kThread;
  static uint32_t rank() { return 0; }
  static uint32_t size() { return 1; }
  static void sync() {}
  static uint32_t agree(uint32_t value) { return value; }
  static bool any(bool value) { return value; }
  static void copy(std::byte* to, const std::byte* from, uint64_t bytes) {
    std::memcpy(to, from, bytes);
  }
  static void copyShare(std::byte* to, const std::byte* from, uint64_t bytes, uint32_t index,
                        uint32_t count) {
    const uint64_t share = (bytes + count - 1) / count;
    const uint64_t begin = std::min<uint64_t>(uint64_t{index} * share, bytes);
    std::memcpy(to + begin, from + begin, std::min(share, bytes - begin));
  }
};

// CPU threads instead of the threads of a block. Their Shared must outlive their calls.
class Crew {
 public:
  static constexpr TeamKind kKind = TeamKind::kBlock;
  struct Shared {
    explicit Shared(uint32_t threads) : size(threads), barrier(threads) {}
    const uint32_t size;
    std::barrier<> barrier;
    uint32_t agreed = 0;  // rank 0 writes it between two barriers
    std::atomic<bool> isAny{false};
  };
  Crew(uint32_t rank, Shared& shared) : rank_(rank), shared_(&shared) {}

  uint32_t rank() const { return rank_; }
  uint32_t size() const { return shared_->size; }
  void sync() const { shared_->barrier.arrive_and_wait(); }
  uint32_t agree(uint32_t value) const {
    if (rank_ == 0) shared_->agreed = value;
    sync();
    const uint32_t agreed = shared_->agreed;
    sync();
    return agreed;
  }
  bool any(bool value) const {
    if (value) shared_->isAny.store(true, std::memory_order_relaxed);
    sync();
    const bool isAny = shared_->isAny.load(std::memory_order_relaxed);
    sync();
    if (rank_ == 0) shared_->isAny.store(false, std::memory_order_relaxed);
    sync();
    return isAny;
  }
  void copy(std::byte* to, const std::byte* from, uint64_t bytes) const {
    ThisThread::copyShare(to, from, bytes, rank_, size());
  }

 private:
  uint32_t rank_;
  Shared* shared_;
};

#endif

}  // namespace peerlane::port
