// SPDX-License-Identifier: Apache-2.0
//
// GpuCopy: one row's transfers as one side posts them, ours and the raw limit, over the same bytes
// at the same places with the same number in flight. Both are enqueued on the side's stream.
// Confined to one thread.
#pragma once

#include <chrono>
#include <memory>
#include <random>
#include <vector>

#include "tools/bench/gpu/bench_gpu_side.h"
#include "tools/ceiling/ceiling_cuda.h"
#include "tools/measure/bench_samples.h"

namespace peerlane::bench {

enum class GpuPosting : uint8_t {
  kCall,           // put() or get(); a list is one call
  kPlan,           // a plan of these blocks
  kIndexed,        // a plan of a layout; block numbers, new with every post
  kDeviceIndexed,  // the same, the numbers in the GPU's memory
};
enum class GpuRaw : uint8_t { kCopyEngine, kKernel, kGather, kBatch };
const char* gpuRawName(GpuRaw raw);
// The faster raw copy of one piece: the copy engine reads short pieces slowly.
GpuRaw contiguousRaw(bool isPut, uint64_t bytes);

// All together within kGpuPatience; the first error.
Status waitForAll(std::span<const Transfer> transfers);

struct GpuCase {
  bool isPut = true;
  bool bothWays = false;  // the child puts as much at the same time
  uint64_t blockBytes = 0;
  uint64_t blocks = 1;
  uint64_t window = 1;  // messages in flight, each with a completion word of its own
  GpuPosting posting = GpuPosting::kCall;
  bool unordered = false;  // on streams of the library's own, as posts without a stream are
  Engine engine = Engine::kAuto;
  uint32_t ctas = 0;
  GpuRaw raw = GpuRaw::kCopyEngine;
  uint32_t rawCtas = 0;    // 0: as many as the GPU has multiprocessors
  bool isOffGrid = false;  // lists: distances that no stride divides
  bool isUneven = false;   // lists: of many sizes, at odd offsets; then isOffGrid does not count
  // How long the poster has made no call of the driver before each sample: it looks at the clock.
  std::chrono::microseconds rest{0};

  uint64_t stride() const {
    return (blockBytes + 255) / 256 * 256 + (isOffGrid || isUneven ? 256 : 0);
  }
  // Of a place in a region.
  uint64_t offsetOf(uint64_t place) const {
    if (isUneven) return place * stride() + place * 7 % 251;
    return place * stride() + (isOffGrid ? place * 7 % 16 * 16 : 0);
  }
  // Of the block whose local place that is.
  uint64_t bytesOf(uint64_t place) const {
    return isUneven ? blockBytes - place * 37 % (blockBytes / 2) : blockBytes;
  }
  uint64_t messageBytes() const { return blockBytes * blocks; }
};

class GpuCopy {
 public:
  GpuCopy(GpuSide& side, const GpuCase& what);
  // place() and makePlans().
  Status begin(bool withCeiling);
  // Where every block lies, for the raw copies as well if they are wanted.
  Status place(bool withCeiling);
  Status makePlans();
  const GpuCase& what() const { return what_; }

  // New places for lists. Outside the clock.
  Status shuffle();
  // All messages of one sample. The raw copies raise first, first + 1 and so on.
  Status post(Contender who, uint64_t first);
  // Host time of the last post() in the calls, per message.
  double postingMicroseconds() const { return posting_; }
  // Until the initiator knows that all of it has ended.
  Status wait(Contender who, uint64_t last);
  // One raw copy without a flag, enqueued. kNotSupported where this machine cannot do it.
  Status postBare() { return postRaw(0, {}); }

  // Bytes of each region that are touched, and the content that the receiver must hold afterwards.
  uint64_t span() const { return places_ * what_.stride(); }
  std::vector<GpuSpan> spans() const;

 private:
  bool isList() const { return what_.blocks > 1; }
  bool isIndexed() const {
    return what_.posting == GpuPosting::kIndexed || what_.posting == GpuPosting::kDeviceIndexed;
  }
  void takePlaces();
  Status uploadNumbers();
  const Region& local() const { return what_.isPut ? side_.source() : side_.destination(); }
  const GpuSide::Other& other() const {
    return what_.isPut ? side_.otherDestination() : side_.otherSource();
  }
  Block blockAt(uint64_t local, uint64_t remote) const;
  GpuPiece pieceAt(uint64_t local, uint64_t remote) const;
  Status uploadRaw();
  Status postOne(uint64_t message);
  Result<Transfer> postOnce(uint64_t message);
  Status postRaw(uint64_t message, GpuFlag flag);

  GpuSide& side_;
  const GpuCase what_;
  uint64_t places_ = 0;
  bool withCeiling_ = false;
  std::mt19937_64 random_{20240607};
  std::vector<uint32_t> localPlace_;
  std::vector<uint32_t> otherPlace_;
  std::vector<Block> blocks_;
  std::vector<Plan> plans_;
  std::vector<Transfer> transfers_;
  std::vector<GpuPiece> pieces_;
  std::unique_ptr<GpuBuffer> list_;
  std::unique_ptr<GpuBuffer> numbers_;  // local ones, then those of the other side
  GpuBatch batch_;
  double posting_ = 0;
};

}  // namespace peerlane::bench
