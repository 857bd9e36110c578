// SPDX-License-Identifier: Apache-2.0
//
// Copy kernel, the gather/scatter kernel: one launch that waits for a word, copies any list of
// pieces and then stores words. Not a queue and not an executor: all places are arguments of the
// launch, and the only state is the set of devices on which the kernels are loaded. Any thread may
// call; the launch goes to the caller's current device, which must be the stream's. Usable under
// stream capture.
#pragma once

#include <cstddef>
#include <cstdint>

#include "peerlane/core/status.h"
#include "peerlane/program/kernel/launch/word_step.h"
#include "peerlane/program/words/copy_device.h"

namespace peerlane::kernel {

struct CopyPiece {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  uint64_t bytes = 0;
};

// So many pieces travel in the launch's parameters; the caller may reuse its array after the call.
// The driver copies all parameters of a kernel, used or not, so there are kernels of three sizes.
inline constexpr uint32_t kShortInlinePieces = 32;
inline constexpr uint32_t kMiddleInlinePieces = 128;
inline constexpr uint32_t kInlinePieces = 512;

// Pieces in memory that the device reads when the kernel runs (its own, or pinned host memory).
struct PieceList {
  const CopyPiece* pieces = nullptr;
  // For each piece the number of tiles (copyTiles) of all pieces up to it, itself included.
  const uint64_t* tileEnds = nullptr;
  uint64_t count = 0;
  uint64_t tiles = 0;  // the last of tileEnds
  // The list lies in host memory, so the kernel reads as little of it as it can.
  bool isFar = false;
  // Many pieces have a source and a destination with different addresses modulo 16, so kThreads
  // copies them, whatever the method.
  bool isUnaligned = false;
};

// Block i goes from `from` + fromStride * fromIndex[i] to `to` + toStride * toIndex[i]. The indices
// lie in memory that the device reads when the kernel runs; null stands for 0, 1, 2...
struct BlockList {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  uint64_t fromStride = 0;
  uint64_t toStride = 0;
  uint64_t blockBytes = 0;
  const uint32_t* fromIndex = nullptr;
  const uint32_t* toIndex = nullptr;
  uint64_t count = 0;
  // Indices must be below these limits (0: no check). The kernel leaves out a block whose index is
  // not, and stores `faultValue` to `fault`, a word as in WordTail.
  uint64_t fromLimit = 0;
  uint64_t toLimit = 0;
  uint64_t* fault = nullptr;
  uint64_t faultValue = 0;
};

enum class CopyMethod : uint8_t {
  kThreads,  // loads and stores: any alignment at full speed
  // The bulk copies of sm_90 and newer, by way of shared memory: a few CTAs of few threads fill the
  // link. Source and destination must have the same address modulo 16: launches with many other
  // pieces, blocks of less than kSmallBlockBytes and older devices use kThreads.
  kBulk,
};

// Blocks smaller than this are copied several at a time.
inline constexpr uint64_t kSmallBlockBytes = 4096;

struct CopyLaunch {
  // The bytes to copy: the first of these three that is not empty. All empty: the launch only waits
  // and stores words.
  const CopyPiece* pieces = nullptr;  // host memory
  uint32_t pieceCount = 0;            // at most kInlinePieces
  PieceList list;
  BlockList blocks;

  WordWait wait;
  WordTail tail;
  // The word, in the device's memory, by which the thread blocks count their arrivals. It must hold
  // 0 and holds 0 again after the launch; one launch at a time may use it. May be null if `tail` is
  // empty or `ctas` is 1.
  uint32_t* arrivals = nullptr;

  CopyMethod method = CopyMethod::kThreads;
  uint32_t ctas = 0;     // 0: as many as the bytes need, at most one for each multiprocessor
  uint32_t threads = 0;  // per CTA, whole warps, at most 1024 (kBulk: 64); 0: what measured best
  // The device may set up the launch while the kernel before it in the stream ends (sm_90 and
  // newer; the launch reads and writes nothing before that end).
  bool overlapsEnd = false;
  void* stream = nullptr;  // cudaStream_t
};

// Loads every kernel on the current device. CUDA would otherwise load a kernel at its first launch
// and wait until the device is idle, which never happens if a running kernel waits for that launch.
Status loadCopyKernels();

// Errors: InvalidArgument, Unavailable (not loaded on this device), System (the launch failed).
Status launchCopy(const CopyLaunch& launch);

}  // namespace peerlane::kernel
