// SPDX-License-Identifier: Apache-2.0
//
// Copy kernel: one launch that waits for a word, copies any list of places and stores words behind
// it. Not a queue and not an executor: it launches what it is told and remembers nothing but which
// devices it has been loaded on. Any thread may call; the launch goes to the caller's current
// device, which must be the stream's. Usable under stream capture.
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

// So many pieces travel in the launch's parameters; the caller's array is free after the call. The
// driver copies all parameters of a kernel, used or not, so there are kernels of three sizes.
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
  // In host memory, of which a device reads as little as it can.
  bool isFar = false;
  // Many pieces lie differently on 16 bytes than where they go, so kThreads takes them, whatever
  // the method.
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
  // Indices must be below these (0: not looked at). A block that breaks that is left out, and
  // `faultValue` is stored to `fault`, a word as in WordTail.
  uint64_t fromLimit = 0;
  uint64_t toLimit = 0;
  uint64_t* fault = nullptr;
  uint64_t faultValue = 0;
};

enum class CopyMethod : uint8_t {
  kThreads,  // loads and stores: any alignment at full speed
  // The copy hardware of sm_90 and newer by way of shared memory: a few CTAs of few threads fill
  // the link. Not for bytes that lie differently on 16 bytes than where they go: launches with many
  // of those, blocks of less than kSmallBlockBytes and older devices take kThreads.
  kBulk,
};

// Blocks smaller than this are copied several at a time.
inline constexpr uint64_t kSmallBlockBytes = 4096;

struct CopyLaunch {
  // What to copy: the first of these that is not empty. All empty: only the words are done.
  const CopyPiece* pieces = nullptr;  // host memory
  uint32_t pieceCount = 0;            // at most kInlinePieces
  PieceList list;
  BlockList blocks;

  WordWait wait;
  WordTail tail;
  // A word of the device's memory that holds 0 and is left so, used by one launch at a time: where
  // blocks of threads count each other. May be null if `tail` is empty or `ctas` is 1.
  uint32_t* arrivals = nullptr;

  CopyMethod method = CopyMethod::kThreads;
  uint32_t ctas = 0;     // 0: as many as the bytes need, at most one for each multiprocessor
  uint32_t threads = 0;  // per CTA, whole warps, at most 1024 (kBulk: 64); 0: what measured best
  // The launch may be set up while the kernel before it in the stream comes to its end (sm_90 and
  // newer; nothing is read or written before that).
  bool overlapsEnd = false;
  void* stream = nullptr;  // cudaStream_t
};

// Makes every kernel resident on the current device. A kernel that is loaded at its first launch
// waits for the device to be idle: never, if one that runs waits for it.
Status loadCopyKernels();

// Errors: InvalidArgument, Unavailable (not loaded on this device), System (the launch failed).
Status launchCopy(const CopyLaunch& launch);

}  // namespace peerlane::kernel
