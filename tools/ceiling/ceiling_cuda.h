// SPDX-License-Identifier: Apache-2.0
//
// The raw limits of GPU memory without this library: the copy engine, plain kernels and flags, in
// the very patterns that the rows of the benchmark use. Not a transfer facility: it copies between
// pointers that somebody else made reachable, checks nothing about them and cancels nothing. Free
// of CUDA's headers; built only where there is CUDA. No state but the driver's entry points:
// thread-safe. The calling thread's current device must be the stream's own, and streams are
// cudaStream_t made by cudaStreamCreate*, never the default one.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "peerlane/core/status.h"
#include "tools/measure/bench_samples.h"

namespace peerlane::bench {

// Kernels read lists of these in device memory.
struct GpuPiece {
  const void* from = nullptr;
  void* to = nullptr;
  uint64_t bytes = 0;
};

// Raised after the bytes: a reader that sees `value` in the word sees them, too. On the receiver's
// GPU or in pinned host memory. No word: nothing is raised.
struct GpuFlag {
  uint64_t* word = nullptr;
  uint64_t value = 0;
};

// Looks the entry points up and loads the kernels on the current device. Call it before all others,
// and before anything spins on a GPU: a kernel that is loaded after a spinning one has started
// never starts.
Status prepareGpuCeilings();

// ---- Enqueued, not waited for -------------------------------------------------------------------

// The copy engine: one copy after the other, then the flag. A list of one is a contiguous put, or
// a get where `from` lies at the peer.
Status gpuCopyEngine(void* stream, std::span<const GpuPiece> pieces, GpuFlag flag);

// A window of messages by the copy engine: `count` times the piece, message i `stride` bytes
// further on both sides, each followed by its own flag of flag.value + i.
Status gpuCopyWindow(void* stream, const GpuPiece& piece, uint64_t stride, uint64_t count,
                     GpuFlag flag);

// The copy engine's batched call, all pieces in one, then the flag. The list is prepared before,
// as the call wants it.
struct GpuBatch {
  GpuBatch() = default;
  explicit GpuBatch(std::span<const GpuPiece> pieces);
  std::vector<const void*> from;
  std::vector<void*> to;
  std::vector<size_t> bytes;
};
// kNotSupported before toolkit and driver 12.8.
Status gpuCopyBatch(void* stream, const GpuBatch& batch, GpuFlag flag);

// How a kernel is launched. The last CTA to end raises the flag after a fence of the system.
struct GpuKernel {
  uint32_t ctas = 132;  // of 512 threads
  // A word on the stream's device: zero before its first use, and zero again after every launch.
  // Launches that may overlap need one each.
  uint64_t* counter = nullptr;
};
// One piece, all CTAs together; eight 16-byte loads in flight per thread.
Status gpuKernelCopy(void* stream, const GpuKernel& kernel, const GpuPiece& piece, GpuFlag flag);
// The naive gather: one CTA per piece, in turns; the list lies in device memory. With `parts` above
// 1 every piece is cut into as many, for lists with fewer pieces than CTAs.
Status gpuKernelGather(void* stream, const GpuKernel& kernel, const GpuPiece* list, uint64_t count,
                       uint32_t parts, GpuFlag flag);
// The same list by bulk copies through shared memory: one issuing thread per CTA, chunks of up to
// 32 KiB. Addresses and sizes are multiples of 16. kNotSupported before compute capability 9.0.
Status gpuBulkGather(void* stream, const GpuKernel& kernel, const GpuPiece* list, uint64_t count,
                     uint64_t bytesOfEach, GpuFlag flag);

// A kernel that does nothing: the launch rate.
Status gpuEmptyKernel(void* stream);

// ---- Measured -----------------------------------------------------------------------------------

struct GpuRepeats {
  uint64_t warmup = 3;     // iterations
  uint64_t samples = 5;    //
  uint64_t perSample = 1;  // iterations
};

// Microseconds per iteration.
struct GpuTimes {
  Samples device;   // between two events on the stream
  Samples host;     // from the first call until the stream had done it all
  Samples posting;  // of the host, in the calls alone
};

// Calls `enqueue` with 0, 1, 2 and so on, warm-up included: flags that only grow need a number.
// When the receiver saw a flag is for the caller to measure.
Status measureGpu(void* stream, const GpuRepeats& repeats,
                  const std::function<Status(uint64_t iteration)>& enqueue, GpuTimes& times);

// The bytes that go to and fro in a game instead of its 8 bytes. Short ones lie in an inbox after
// the words, and are copied out; longer ones go straight into the other side's memory, whose place
// is no secret here. The caller must check that they came back as they went.
struct GpuGameBytes {
  static constexpr uint64_t kMostInbox = 2048;
  static constexpr uint64_t kInboxAt = 1024;  // after `mine` and `theirs`
  uint64_t count = 0;
  const void* from = nullptr;
  void* into = nullptr;         // where received bytes end up, on this side
  void* there = nullptr;        // the other side's `into`, as reached from here
  uint64_t* counter = nullptr;  // as GpuKernel's
};

// Two-sided messages of 8 bytes by kernels of one thread, in turns: send stores the bytes and then
// a flag, receive spins on the flag and takes the bytes. Numbers are kept in device memory, so that
// a graph can be replayed; both sides play the same numbers of rounds, game after game.
struct GpuGame {
  static constexpr uint64_t kWords = 64;  // of 8 bytes; zero before the first game
  uint64_t* mine = nullptr;               // on the stream's device
  uint64_t* theirs = nullptr;             // the other side's `mine`, as reached from here
  uint64_t perGraph = 0;                  // rounds in a graph; 0: launched one by one
  GpuGameBytes bytes{};                   // none: the 8 bytes of a word
};
// Adds whole round trips, in microseconds per round. Warm-up and samples are rounds that come in
// whole graphs. kCorrupt when the last message did not come back as it went, kTimeout when the
// other side did not answer for some ten seconds.
Status gpuServe(void* stream, const GpuGame& game, const GpuRepeats& repeats, Samples& roundTrips);
// The other side, with the same numbers.
Status gpuReturn(void* stream, const GpuGame& game, const GpuRepeats& repeats);

}  // namespace peerlane::bench
