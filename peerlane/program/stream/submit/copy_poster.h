// SPDX-License-Identifier: Apache-2.0
//
// CopyPoster: enqueues the copies of a program on a stream, and after them the store of the
// completion word. External synchronization required.
#pragma once

#include <string>
#include <vector>

#include "peerlane/program/stream/copy/copy_engine.h"
#include "peerlane/program/stream/copy/stream_program.h"
#include "peerlane/program/stream/queues/counter_words.h"

namespace peerlane::stream {

class CopyPoster {
 public:
  explicit CopyPoster(PinnedPool& pool) : pool_(pool) {}
  // With the GPU current. `counter`: the claimed word to which the post adds, or null.
  // `behindWait`: the last work on the stream is a wait for a word; the launch must not begin
  // before that wait ends. `abort`: the abort word, or null; kernels copy nothing if it is not 0.
  Result<DevicePost> post(StreamProgram& program, SubmissionQueue& queue,
                          const DeviceIndices& indices, const CounterWords::Claim* counter,
                          bool behindWait = false, const std::atomic<uint64_t>* abort = nullptr);
  // By which others post copies without a completion word.
  CopyEngine& engine() { return copyEngine_; }
  std::string explain() const { return copyEngine_.explain(); }

 private:
  Result<std::atomic<uint64_t>*> faultWord(SubmissionQueue& queue, uint64_t number);
  Result<DevicePost> byKernel(StreamProgram& program, SubmissionQueue& queue,
                              const DeviceIndices& indices, const CounterWords::Claim* counter,
                              bool behindWait, const std::atomic<uint64_t>* abort);
  Result<DevicePost> byCopyEngine(const StreamProgram& program, SubmissionQueue& queue,
                                  const DeviceIndices& indices, const CounterWords::Claim* counter);

  PinnedPool& pool_;
  CopyEngine copyEngine_;
  std::vector<kernel::CopyPiece> scratch_;
};

}  // namespace peerlane::stream
