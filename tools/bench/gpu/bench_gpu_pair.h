// SPDX-License-Identifier: Apache-2.0
//
// GpuPair: the two processes of a GPU benchmark, as the parent sees them. The child is this program
// again, started before CUDA is touched. One sample is timed from the parent's first call until the
// last completion word was seen by the receiver's CPU. Every wait is bounded, and the child's end
// is noticed. Confined to one thread.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "tools/bench/gpu/bench_gpu_copy.h"
#include "tools/bench/gpu/bench_gpu_side.h"
#include "tools/trial/spawned_process.h"

namespace peerlane::bench {

// Device memory, beyond the primary contexts and the benchmark's own, summed over both GPUs.
struct GpuFootprint {
  double parentContext = 0;  // of one Context, in bytes
  double childContext = 0;
};

// Two GPUs for the two processes: none wanted: 0 and 1, or 0 for both where there is only one; one
// wanted: that one for both. kInvalidArgument for one that is not there.
Result<std::vector<int>> chooseGpus(const std::vector<int>& wanted);

class GpuPair {
 public:
  // `gpus`: those of the parent and the child, as `--device` says it; see chooseGpus.
  // `link`: no other between the two; empty: all. Over tcp the bytes are staged, over verbs where
  // the NIC does not reach the memory.
  static Result<std::unique_ptr<GpuPair>> create(const std::vector<int>& gpus, bool byCudaMalloc,
                                                 const std::string& link, uint64_t regionBytes);
  ~GpuPair();
  GpuPair(const GpuPair&) = delete;
  GpuPair& operator=(const GpuPair&) = delete;

  GpuSide& side() { return *side_; }
  GpuPipe& pipe() { return *pipe_; }
  const std::string& childTicket() const { return childTicket_; }
  const GpuFootprint& footprint() const { return footprint_; }
  bool isOneGpu() const { return setup_.gpu == setup_.otherGpu; }
  // The link that copies GPU memory between the two.
  std::string link() const;
  uint64_t nextSeed() { return ++seed_; }
  uint64_t nextNumber() { return ++number_; }

  Status fillOther(uint64_t bytes, uint64_t seed);  // its source
  Status poisonOther(uint64_t bytes);
  Result<uint64_t> verifyOther(uint64_t seed, std::span<const GpuSpan> spans);
  // Used on both GPUs now.
  Result<uint64_t> usedBytes();

  // Microseconds of one sample.
  Result<double> sample(GpuCopy& copy, Contender who);
  // After a sample that failed: makes both sides agree again on the counts.
  Status recover();
  // Looks until the child looks, too.
  Status awaitArmed(uint64_t number);

 private:
  GpuPair() = default;
  Status spawn();
  Status meet();
  Result<double> seenByChild();
  Result<double> samplePut(GpuCopy& copy, Contender who);
  Result<double> sampleGet(GpuCopy& copy, Contender who);
  Result<double> sampleBothWays(GpuCopy& copy, Contender who);

  GpuSetup setup_;
  std::unique_ptr<SpawnedProcess> child_;
  std::unique_ptr<GpuPipe> pipe_;
  std::unique_ptr<GpuSide> side_;
  std::string childTicket_;
  GpuFootprint footprint_;
  uint64_t seed_ = 0;
  uint64_t number_ = 0;       // of requests with the desk
  uint64_t signals_ = 0;      // additions that this side's puts made at the child
  uint64_t flags_ = 0;        // raised by this side's raw copies
  uint64_t signalsBack_ = 0;  // the same of the child
  uint64_t flagsBack_ = 0;    //
  bool answerIsDue_ = false;  // of a request whose sample failed
};

}  // namespace peerlane::bench
