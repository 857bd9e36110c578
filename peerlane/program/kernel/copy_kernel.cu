// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/kernel/copy_kernel.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>

#include "peerlane/program/kernel/bulk_copy_device.h"
#include "peerlane/program/kernel/copy_list_device.h"
#include "peerlane/program/kernel/word_step_device.h"

namespace peerlane::kernel {
namespace {

// What every kernel gets beside its list.
struct Frame {
  WordWait wait;
  WordTail tail;
  uint32_t* arrivals;
  uint64_t tiles;
  uint64_t tilesPerCta;  // the first `tilesLeft` CTAs take one more
  uint64_t tilesLeft;
  uint32_t bufferBytes;  // kBulk
  uint32_t divider;      // small blocks: 2^32 / vectors of a block, rounded up
  bool interleave;
};

template <class Source>
struct Job {
  Frame frame;
  Source source;
};

static_assert(sizeof(Job<InlinePieces>) <= 4096, "what a launch's parameters hold everywhere");

inline constexpr uint32_t kStagedEntries = 512;
inline constexpr uint32_t kMaxThreads = 1024;
inline constexpr uint32_t kBulkThreads = 128;
inline constexpr uint32_t kBulkBytes = 192 * 1024;

// Arrivals count CTAs below, and in the upper half those whose wait was released.
inline constexpr uint32_t kReleasedUnit = 1u << 16;
inline constexpr uint32_t kMaxCtas = kReleasedUnit - 1;

__device__ __forceinline__ bool isReady(const Frame& frame) {
  if (frame.wait.word == nullptr && frame.wait.abort == nullptr) return true;
  return __syncthreads_or(threadIdx.x == 0 && !passesWait(frame.wait)) == 0;
}

// The last CTA that arrives does the tail: its fence follows all others' arrivals, and theirs
// follow their bytes.
__device__ inline void finish(const Frame& frame, bool released) {
  if (frame.tail.isEmpty()) return;
  __syncthreads();
  if (threadIdx.x != 0) return;
  device::fenceSystem();
  if (gridDim.x > 1) {
    const uint32_t mine = 1 + (released ? kReleasedUnit : 0);
    const uint32_t arrived = atomicAdd(frame.arrivals, mine) + mine;
    if ((arrived & (kReleasedUnit - 1)) != gridDim.x) return;
    *frame.arrivals = 0;
    released = arrived >= kReleasedUnit;
    device::fenceSystem();
  }
  performTail(frame.tail, released);
}

struct Share {
  uint64_t begin, end;      // tiles of this CTA
  uint32_t offset, stride;  // and of this warp among them
};

__device__ __forceinline__ Share shareOf(const Frame& frame) {
  const uint32_t warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const uint64_t cta = blockIdx.x;
  if (frame.interleave)
    return {0, frame.tiles, static_cast<uint32_t>(cta) * warps + warp, gridDim.x * warps};
  const uint64_t begin = cta * frame.tilesPerCta + (cta < frame.tilesLeft ? cta : frame.tilesLeft);
  return {begin, begin + frame.tilesPerCta + (cta < frame.tilesLeft ? 1 : 0), warp, warps};
}

__global__ void __launch_bounds__(kMaxThreads)
    onePieceKernel(const __grid_constant__ Job<OnePiece> job) {
  const bool ready = isReady(job.frame);
  if (ready) {
    const CopyPiece& piece = job.source.piece;
    const Share share = shareOf(job.frame);
#pragma unroll 1
    for (uint64_t tile = share.begin + share.offset; tile < share.end; tile += share.stride)
      device::warpCopyTile(piece.from, piece.to, piece.bytes, tile, job.frame.tiles);
  }
  finish(job.frame, !ready);
}

template <class Source>
__global__ void __launch_bounds__(kMaxThreads) listKernel(const __grid_constant__ Job<Source> job) {
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
    smallBlocksKernel(const __grid_constant__ Job<EqualBlocks> job) {
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

template <class Source, uint32_t kStages>
__global__ void __launch_bounds__(kBulkThreads)
    bulkKernel(const __grid_constant__ Job<Source> job) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte buffers[];
  __shared__ EntryStage<kBulkThreads> stages[2];
  __shared__ typename BulkRing<kStages>::Slots slots[kBulkThreads / 32];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t bufferBytes = job.frame.bufferBytes;
  const uint64_t tilesAtOnce = bufferBytes / kCopyTileBytes;
  BulkRing<kStages> ring(slots[warp], buffers + warp * kStages * bufferBytes, bufferBytes);

  // Whole vectors by the ring, edges by the lanes; all of it by the lanes if the two sides lie
  // differently.
  auto move = [&](const std::byte* from, std::byte* to, uint64_t bytes) {
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
  };
  const Share share = shareOf(job.frame);
  const uint64_t part = job.frame.interleave ? share.offset : warp;
  const uint64_t parts = job.frame.interleave ? share.stride : blockDim.x / 32;
  const bool ready = walkEntries(
      job.source, share.begin, share.end, stages,
      [&] {
        const bool passed = isReady(job.frame);
        fenceBulkCopies();
        return passed;
      },
      [&](const EntryStage<kBulkThreads>& stage, uint32_t staged, uint64_t firstTile,
          uint64_t begin, uint64_t end) {
        const uint64_t mine = begin + (end - begin) * part / parts;
        const uint64_t mineEnd = begin + (end - begin) * (part + 1) / parts;
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
          move(stage.from[entry] + first, stage.to[entry] + first, behind - first);
          tile = upTo;
        }
      });
  if (lane == 0) ring.finish();
  finish(job.frame, !ready);
#endif
}

// ---- The host's side.

struct Kernel {
  const void* function;
  bool bulk;
};

template <class Source>
const void* bulkFunction(uint32_t stages) {
  return stages == 8 ? reinterpret_cast<const void*>(&bulkKernel<Source, 8>)
                     : reinterpret_cast<const void*>(&bulkKernel<Source, 4>);
}

template <class Function>
const void* address(Function* function) {
  return reinterpret_cast<const void*>(function);
}

const std::array<Kernel, 16>& kernels() {
  static const std::array<Kernel, 16> all{{
      {address(&onePieceKernel), false},
      {address(&listKernel<InlinePieces>), false},
      {address(&listKernel<ListedPieces>), false},
      {address(&listKernel<EqualBlocks>), false},
      {address(&smallBlocksKernel<16>), false},
      {address(&smallBlocksKernel<8>), false},
      {address(&smallBlocksKernel<4>), false},
      {address(&smallBlocksKernel<1>), false},
      {bulkFunction<OnePiece>(4), true},
      {bulkFunction<InlinePieces>(4), true},
      {bulkFunction<ListedPieces>(4), true},
      {bulkFunction<EqualBlocks>(4), true},
      {bulkFunction<OnePiece>(8), true},
      {bulkFunction<InlinePieces>(8), true},
      {bulkFunction<ListedPieces>(8), true},
      {bulkFunction<EqualBlocks>(8), true},
  }};
  return all;
}

// What loadCopyKernels() found, by device; `multiprocessors` is stored last, with release.
struct LoadedDevice {
  std::atomic<uint32_t> multiprocessors{0};
  std::atomic<bool> bulk{false};
};
constexpr int kMaxDevices = 128;
LoadedDevice loadedDevices[kMaxDevices];

Status failed(cudaError_t error, const char* what) {
  (void)cudaGetLastError();  // it is reported here and shall not be found by somebody else's call
  return Status(Code::kSystem, std::string(what) + ": " + cudaGetErrorString(error));
}

// Everything about one launch but the list.
struct Shape {
  const void* function;
  uint32_t ctas;
  uint32_t threads;
  uint32_t dynamicBytes;
};

constexpr uint32_t kDefaultThreads = 512;
constexpr uint32_t kDefaultBulkThreads = 64;
constexpr uint32_t kDefaultBulkStages = 4;

uint32_t ctasFor(const CopyLaunch& launch, const LoadedDevice& device, uint64_t bytes,
                 uint32_t threads) {
  if (launch.ctas != 0) return launch.ctas;
  const uint64_t perCta =
      launch.method == CopyMethod::kBulk ? 64 * 1024 : kCopyTileBytes * (threads / 32);
  const uint64_t wanted = bytes / perCta + (bytes % perCta != 0);
  const uint64_t most = device.multiprocessors.load(std::memory_order_relaxed);
  return static_cast<uint32_t>(std::clamp<uint64_t>(wanted, 1, most));
}

template <class Source>
Status send(const CopyLaunch& launch, Job<Source>& job, const Shape& shape, uint64_t tiles) {
  Frame& frame = job.frame;
  frame.wait = launch.wait;
  frame.tail = launch.tail;
  frame.arrivals = launch.arrivals;
  frame.tiles = tiles;
  frame.tilesPerCta = tiles / shape.ctas;
  frame.tilesLeft = tiles % shape.ctas;
  frame.interleave = launch.interleave;
  void* arguments[] = {&job};
  if (const cudaError_t error =
          cudaLaunchKernel(shape.function, dim3(shape.ctas), dim3(shape.threads), arguments,
                           shape.dynamicBytes, static_cast<cudaStream_t>(launch.stream));
      error != cudaSuccess)
    return failed(error, "launching a copy kernel");
  return Status::ok();
}

// Launches the thread or the bulk kernel for `job`; `threadFunction` is the former.
template <class Source>
Status dispatch(const CopyLaunch& launch, const LoadedDevice& device, Job<Source>& job,
                const void* threadFunction, uint64_t bytes, uint64_t tiles, bool bulk) {
  Shape shape{threadFunction, 0, launch.threads == 0 ? kDefaultThreads : launch.threads, 0};
  if (bulk) {
    const uint32_t stages = launch.bulkStages == 8 ? 8 : kDefaultBulkStages;
    shape.threads =
        std::min(launch.threads == 0 ? kDefaultBulkThreads : launch.threads, kBulkThreads);
    const uint32_t rings = stages * (shape.threads / 32);
    job.frame.bufferBytes =
        kBulkBytes / rings / uint32_t{kCopyTileBytes} * uint32_t{kCopyTileBytes};
    shape.function = bulkFunction<Source>(stages);
    shape.dynamicBytes = rings * job.frame.bufferBytes;
  }
  shape.ctas = ctasFor(launch, device, bytes, shape.threads);
  if (shape.ctas > 1 && launch.arrivals == nullptr && !launch.tail.isEmpty())
    return Status(Code::kInvalidArgument, "several CTAs with a tail need a word for arrivals");
  return send(launch, job, shape, tiles);
}

Status launchPieces(const CopyLaunch& launch, const LoadedDevice& device, bool bulk) {
  if (launch.pieceCount <= 1) {
    Job<OnePiece> job{};
    if (launch.pieceCount == 1) job.source.piece = launch.pieces[0];
    const uint64_t bytes = job.source.piece.bytes;
    return dispatch(launch, device, job, address(&onePieceKernel), bytes, copyTiles(bytes), bulk);
  }
  Job<InlinePieces> job;
  job.source.pieceCount = launch.pieceCount;
  uint64_t tiles = 0, bytes = 0;
  for (uint32_t i = 0; i < launch.pieceCount; ++i) {
    job.source.pieces[i] = launch.pieces[i];
    tiles += copyTiles(launch.pieces[i].bytes);
    bytes += launch.pieces[i].bytes;
    job.source.tileEnds[i] = static_cast<uint32_t>(tiles);
  }
  if (tiles >> 32 != 0)
    return Status(Code::kInvalidArgument, "pieces of more than 16 TiB in one launch");
  return dispatch(launch, device, job, address(&listKernel<InlinePieces>), bytes, tiles, bulk);
}

// The widest access that all blocks allow, or 0 if they are no small blocks.
uint32_t smallBlockWidth(const BlockList& list) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(list.from) |
                        reinterpret_cast<uintptr_t>(list.to) | list.fromStride | list.toStride |
                        list.blockBytes;
  const uint32_t width = bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : bits % 4 == 0 ? 4 : 1;
  // Beyond the second bound, whole vectors of shifted bytes are faster than narrow ones.
  return list.blockBytes < (width >= 8 ? kSmallBlockBytes : 512) ? width : 0;
}

Status launchBlocks(const CopyLaunch& launch, const LoadedDevice& device, bool bulk) {
  const BlockList& list = launch.blocks;
  Job<EqualBlocks> job{};
  job.source.list = list;
  const uint64_t bytes = list.count * list.blockBytes;
  const uint32_t width = smallBlockWidth(list);
  if (width == 0) {
    job.source.tilesPerBlock = copyTiles(list.blockBytes);
    return dispatch(launch, device, job, address(&listKernel<EqualBlocks>), bytes,
                    list.count * job.source.tilesPerBlock, bulk);
  }
  job.source.tilesPerBlock = 1;
  const uint32_t perBlock = static_cast<uint32_t>(list.blockBytes) / width;
  job.frame.divider = perBlock <= 1 ? 0 : 0xffffffffu / perBlock + 1;
  const void* function = width == 16  ? address(&smallBlocksKernel<16>)
                         : width == 8 ? address(&smallBlocksKernel<8>)
                         : width == 4 ? address(&smallBlocksKernel<4>)
                                      : address(&smallBlocksKernel<1>);
  return dispatch(launch, device, job, function, bytes, list.count, false);
}

Status check(const CopyLaunch& launch) {
  if (launch.pieceCount > kInlinePieces)
    return Status(Code::kInvalidArgument, "too many pieces for the launch's parameters");
  if (launch.threads % 32 != 0 || launch.threads > kMaxThreads)
    return Status(Code::kInvalidArgument, "threads per CTA are whole warps, at most 1024");
  if (launch.ctas > kMaxCtas) return Status(Code::kInvalidArgument, "too many CTAs");
  if (launch.tail.storeCount > kMaxWordStores)
    return Status(Code::kInvalidArgument, "too many words to store");
  return Status::ok();
}

}  // namespace

Status loadCopyKernels() {
  int index = 0, multiprocessors = 0, major = 0;
  if (cudaError_t error = cudaGetDevice(&index)) return failed(error, "asking for the device");
  if (index >= kMaxDevices) return Status(Code::kNotSupported, "too many devices");
  if (cudaError_t error =
          cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, index))
    return failed(error, "asking for the multiprocessors");
  if (cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index))
    return failed(error, "asking for the compute capability");
  for (const Kernel& kernel : kernels()) {
    cudaFuncAttributes attributes;
    if (cudaError_t error = cudaFuncGetAttributes(&attributes, kernel.function))
      return failed(error, "loading a copy kernel");
    if (!kernel.bulk || major < 9) continue;
    if (cudaError_t error = cudaFuncSetAttribute(
            kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, int{kBulkBytes}))
      return failed(error, "sizing a bulk copy kernel");
  }
  LoadedDevice& device = loadedDevices[index];
  device.bulk.store(major >= 9, std::memory_order_relaxed);
  // Release: pairs with the acquire in launchCopy().
  device.multiprocessors.store(static_cast<uint32_t>(multiprocessors), std::memory_order_release);
  return Status::ok();
}

Status launchCopy(const CopyLaunch& launch) {
  PEERLANE_RETURN_IF_ERROR(check(launch));
  int index = 0;
  if (cudaError_t error = cudaGetDevice(&index)) return failed(error, "asking for the device");
  if (index >= kMaxDevices ||
      loadedDevices[index].multiprocessors.load(std::memory_order_acquire) == 0)
    return Status(Code::kUnavailable, "the copy kernels are not loaded on the current device");
  const LoadedDevice& device = loadedDevices[index];
  const bool bulk =
      launch.method == CopyMethod::kBulk && device.bulk.load(std::memory_order_relaxed);
  if (launch.pieceCount == 0 && launch.list.count != 0) {
    Job<ListedPieces> job{};
    job.source.list = launch.list;
    return dispatch(launch, device, job, address(&listKernel<ListedPieces>),
                    launch.list.tiles * kCopyTileBytes, launch.list.tiles, bulk);
  }
  if (launch.pieceCount == 0 && launch.blocks.count != 0 && launch.blocks.blockBytes != 0)
    return launchBlocks(launch, device, bulk);
  return launchPieces(launch, device, bulk);
}

}  // namespace peerlane::kernel
