// SPDX-License-Identifier: Apache-2.0
//
// The parameters of a gather/scatter kernel (copy kernel), and the table of these kernels: the
// agreement between copy_launch.cu, which launches, and copy_kernel.cu, which runs. Only for those
// two. No state.
#pragma once

#if defined(__CUDACC__)

#include "peerlane/program/kernel/copy/copy_list_device.h"
#include "peerlane/program/kernel/launch/word_step.h"

namespace peerlane::kernel {

struct CopyFrame {
  WordWait wait;
  WordTail tail;
  uint32_t* arrivals;
  uint64_t tilesPerCta;  // the first `tilesLeft` CTAs take one more
  uint64_t tilesLeft;
  uint32_t bufferBytes;  // bulk kernels
  uint32_t divider;      // small blocks: 2^32 / vectors of a block, rounded up
};

template <class Source>
struct CopyJob {
  CopyFrame frame;
  Source source;
};

static_assert(sizeof(CopyJob<InlinePieces<kMiddleInlinePieces>>) <= 4096);
// From CUDA 12.1 on, on devices of sm_70 and newer.
static_assert(sizeof(CopyJob<InlinePieces<kInlinePieces>>) <= 32764, "a launch's parameters");

inline constexpr uint32_t kMaxThreads = 1024;
inline constexpr uint32_t kBulkThreads = 64;
inline constexpr uint32_t kBulkStages = 4;  // buffers of a warp
inline constexpr uint32_t kBulkBytes = 192 * 1024;

// Arrivals count CTAs below, and in the upper half those whose wait was released.
inline constexpr uint32_t kReleasedUnit = 1u << 16;
inline constexpr uint32_t kMaxCtas = kReleasedUnit - 1;

enum CopySource : uint32_t {
  kOnePiece,
  kShortInlineList,
  kMiddleInlineList,
  kInlineList,
  kListInMemory,
  kBlocks,
  kCopySources
};

// Kernels that take a CopyJob of that source; by threads, by the copy hardware.
const void* threadKernelFor(CopySource source);
const void* bulkKernelFor(CopySource source);
// Takes blocks smaller than kSmallBlockBytes, by accesses of 16, 8, 4 or 1 bytes.
const void* smallBlocksKernelFor(uint32_t width);

}  // namespace peerlane::kernel

#endif  // defined(__CUDACC__)
