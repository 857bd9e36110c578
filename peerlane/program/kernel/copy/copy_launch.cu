// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "peerlane/program/kernel/copy/copy_job_device.h"
#include "peerlane/program/kernel/copy/copy_kernel.h"
#include "peerlane/program/kernel/launch/kernel_launch.h"

namespace peerlane::kernel {
namespace {

// What loadCopyKernels() found, by device; `multiprocessors` is stored last, with release.
struct LoadedDevice {
  std::atomic<uint32_t> multiprocessors{0};
  std::atomic<bool> bulk{false};
};
constexpr int kMaxDevices = 128;
LoadedDevice loadedDevices[kMaxDevices];

Status failed(cudaError_t error, const char* what) {
  (void)cudaGetLastError();  // reported here, so no later call of the program may find it
  return Status(Code::kSystem, std::string(what) + ": " + cudaGetErrorString(error));
}

constexpr uint32_t kDefaultThreads = 512;
// With the default number of threads, so few CTAs do not fill the link.
constexpr uint32_t kFewCtas = 16;

// The properties of the copy on which the shape of the launch depends.
struct Load {
  CopySource source;
  const void* threadKernel;
  uint64_t bytes;
  uint64_t tiles;
  bool byHardware;  // kBulk is allowed and fits
};

struct Shape {
  const void* kernel;
  uint32_t ctas;
  uint32_t threads;
  uint32_t dynamicBytes;
  uint32_t bufferBytes;
};

uint32_t ctasFor(const CopyLaunch& launch, const LoadedDevice& device, uint64_t bytes,
                 uint64_t perCta) {
  if (launch.ctas != 0) return launch.ctas;
  const uint64_t wanted = bytes / perCta + (bytes % perCta != 0);
  const uint64_t most = device.multiprocessors.load(std::memory_order_relaxed);
  return static_cast<uint32_t>(std::clamp<uint64_t>(wanted, 1, most));
}

Shape shapeOf(const CopyLaunch& launch, const LoadedDevice& device, const Load& load) {
  if (!load.byHardware) {
    const bool few = launch.ctas != 0 && launch.ctas <= kFewCtas &&
                     load.bytes / launch.ctas > kDefaultThreads / 32 * kCopyTileBytes;
    const uint32_t threads = launch.threads != 0 ? launch.threads
                             : few               ? kMaxThreads
                                                 : kDefaultThreads;
    return {load.threadKernel, ctasFor(launch, device, load.bytes, kCopyTileBytes * (threads / 32)),
            threads, 0, 0};
  }
  const uint32_t threads =
      launch.threads == 0 ? kBulkThreads : std::min(launch.threads, kBulkThreads);
  const uint32_t rings = kBulkStages * (threads / 32);
  const uint32_t bufferBytes =
      kBulkBytes / rings / uint32_t{kCopyTileBytes} * uint32_t{kCopyTileBytes};
  return {bulkKernelFor(load.source), ctasFor(launch, device, load.bytes, 64 * 1024), threads,
          rings * bufferBytes, bufferBytes};
}

template <class Source>
Status send(const CopyLaunch& launch, const LoadedDevice& device, const Load& load,
            CopyJob<Source>& job) {
  const Shape shape = shapeOf(launch, device, load);
  if (shape.ctas > 1 && launch.arrivals == nullptr && !launch.tail.isEmpty())
    return Status(Code::kInvalidArgument, "several CTAs with a tail need a word for arrivals");
  CopyFrame& frame = job.frame;
  frame.wait = launch.wait;
  frame.tail = launch.tail;
  frame.arrivals = launch.arrivals;
  frame.tilesPerCta = load.tiles / shape.ctas;
  frame.tilesLeft = load.tiles % shape.ctas;
  frame.bufferBytes = shape.bufferBytes;
  return launchKernel({.kernel = shape.kernel,
                       .ctas = shape.ctas,
                       .threads = shape.threads,
                       .dynamicBytes = shape.dynamicBytes,
                       .overlapsEnd = launch.overlapsEnd,
                       .stream = launch.stream},
                      &job, "launching a copy kernel");
}

bool liesAlike(const std::byte* from, const std::byte* to) {
  return ((reinterpret_cast<uintptr_t>(from) ^ reinterpret_cast<uintptr_t>(to)) & 15) == 0;
}

template <uint32_t kMost>
Status launchInline(const CopyLaunch& launch, const LoadedDevice& device, bool bulk,
                    CopySource source) {
  CopyJob<InlinePieces<kMost>> job;
  job.frame = {};
  job.source.pieceCount = launch.pieceCount;
  Load load{source, threadKernelFor(source), 0, 0, bulk};
  uint64_t unlike = 0;
  for (uint32_t i = 0; i < launch.pieceCount; ++i) {
    const CopyPiece& piece = launch.pieces[i];
    job.source.pieces[i] = piece;
    load.tiles += copyTiles(piece.bytes);
    load.bytes += piece.bytes;
    if (!liesAlike(piece.from, piece.to)) unlike += piece.bytes;
    job.source.tileEnds[i] = static_cast<uint32_t>(load.tiles);
  }
  if (load.tiles >> 32 != 0)
    return Status(Code::kInvalidArgument, "pieces of more than 16 TiB in one launch");
  load.byHardware = bulk && unlike <= load.bytes / 16;
  return send(launch, device, load, job);
}

Status launchPieces(const CopyLaunch& launch, const LoadedDevice& device, bool bulk) {
  if (launch.pieceCount <= 1) {
    CopyJob<OnePiece> job{};
    if (launch.pieceCount == 1) job.source.piece = launch.pieces[0];
    const CopyPiece& piece = job.source.piece;
    return send(launch, device,
                {kOnePiece, threadKernelFor(kOnePiece), piece.bytes, copyTiles(piece.bytes),
                 bulk && liesAlike(piece.from, piece.to)},
                job);
  }
  if (launch.pieceCount <= kShortInlinePieces)
    return launchInline<kShortInlinePieces>(launch, device, bulk, kShortInlineList);
  if (launch.pieceCount <= kMiddleInlinePieces)
    return launchInline<kMiddleInlinePieces>(launch, device, bulk, kMiddleInlineList);
  return launchInline<kInlinePieces>(launch, device, bulk, kInlineList);
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
  CopyJob<EqualBlocks> job{};
  job.source.list = list;
  Load load{kBlocks, threadKernelFor(kBlocks), list.count * list.blockBytes, list.count, false};
  const uint32_t width = smallBlockWidth(list);
  job.source.tilesPerBlock = width == 0 ? copyTiles(list.blockBytes) : 1;
  load.tiles *= job.source.tilesPerBlock;
  if (width == 0) {
    load.byHardware =
        bulk && liesAlike(list.from, list.to) && (list.fromStride | list.toStride) % 16 == 0;
  } else {
    const uint32_t perBlock = static_cast<uint32_t>(list.blockBytes) / width;
    job.frame.divider = perBlock <= 1 ? 0 : 0xffffffffu / perBlock + 1;
    load.threadKernel = smallBlocksKernelFor(width);
  }
  return send(launch, device, load, job);
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
  constexpr const char* kWhat = "a copy kernel";
  for (const uint32_t width : {16, 8, 4, 1})
    PEERLANE_RETURN_IF_ERROR(loadKernel(smallBlocksKernelFor(width), kWhat));
  for (uint32_t i = 0; i < kCopySources; ++i) {
    const auto source = static_cast<CopySource>(i);
    PEERLANE_RETURN_IF_ERROR(loadKernel(threadKernelFor(source), kWhat));
    PEERLANE_RETURN_IF_ERROR(loadKernel(bulkKernelFor(source), kWhat));
    if (major < 9) continue;
    if (cudaError_t error = cudaFuncSetAttribute(
            bulkKernelFor(source), cudaFuncAttributeMaxDynamicSharedMemorySize, int{kBulkBytes}))
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
    CopyJob<ListedPieces> job{};
    job.source.list = launch.list;
    return send(launch, device,
                {kListInMemory, threadKernelFor(kListInMemory), launch.list.tiles * kCopyTileBytes,
                 launch.list.tiles, bulk && !launch.list.isUnaligned},
                job);
  }
  if (launch.pieceCount == 0 && launch.blocks.count != 0 && launch.blocks.blockBytes != 0)
    return launchBlocks(launch, device, bulk);
  return launchPieces(launch, device, bulk);
}

}  // namespace peerlane::kernel
