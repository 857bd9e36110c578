// SPDX-License-Identifier: Apache-2.0
//
// StreamCapture: makes work part of the graph that a stream is being captured into. A constant
// would be right in the first replay only, so every number is a cursor in the device's memory plus
// a constant, and only kernels are captured (copies of the copy engine where the caller asks for
// them). A word of a signal to which a graph adds has that graph as its only writer. Any thread;
// one capture at a time.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <tuple>

#include "peerlane/core/mutex.h"
#include "peerlane/os/cuda.h"
#include "peerlane/program/device/device_executor.h"
#include "peerlane/program/stream/capture/graph_words.h"
#include "peerlane/program/stream/copy/stream_program.h"
#include "peerlane/program/stream/ordered/ordered_program.h"
#include "peerlane/program/stream/pools/descriptor_arena.h"
#include "peerlane/program/stream/pools/pinned_pool.h"
#include "peerlane/program/stream/queues/counter_words.h"

namespace peerlane::stream {

// One word of a signal and its cursor, shared by all additions that one capture makes on one
// stream, because those run in order.
class GraphCounter;

class StreamCapture {
 public:
  // `pool` outlives it.
  StreamCapture(std::shared_ptr<const cuda::PrimaryContext> gpu,
                std::shared_ptr<SharedCounterWords> counters, PinnedPool& pool)
      : gpu_(std::move(gpu)), counters_(std::move(counters)), pool_(pool) {}

  // `words`: zeroed device memory for so many captured operations.
  void open(void* setUpStream, std::byte* words, size_t count) {
    setUpStream_ = setUpStream;
    words_.adopt(words, count);
  }

  static bool isCapturing(void* stream);
  // The functions of DeviceExecutor, with the GPU current.
  Result<std::unique_ptr<CapturedWork>> copies(const StreamProgram& program, void* stream,
                                               const DeviceIndices& indices,
                                               const std::atomic<uint64_t>* abort,
                                               std::atomic<uint64_t>* fault);
  // Errors: kNotSupported for a program with cursors, whose values would be constants of the graph.
  Result<std::unique_ptr<CapturedWork>> ordered(OrderedProgram& program, void* stream);
  Result<std::unique_ptr<CapturedWork>> wait(void* stream, const std::byte* line, uint64_t value,
                                             uint64_t perReplay,
                                             const std::atomic<uint64_t>* abort);
  Result<std::unique_ptr<CapturedWork>> bell(void* stream, std::atomic<uint64_t>* word,
                                             const std::atomic<uint64_t>* abort);
  // `arena` outlives the work.
  Result<std::unique_ptr<CapturedWork>> steps(void* stream, std::span<const StepCall> calls,
                                              DescriptorArena& arena);
  static Status keepByGraph(void* stream, std::function<void()> gone);

 private:
  friend class GraphCounter;
  struct Work;
  using CounterKey = std::tuple<uint64_t, void*, std::byte*>;  // capture, stream, line

  Result<std::unique_ptr<Work>> makeWork();
  Result<std::shared_ptr<GraphCounter>> counterOf(void* stream, std::byte* line)
      PEERLANE_REQUIRES(mutex_);
  Status launch(const StreamProgram& program, void* stream, const DeviceIndices& indices,
                const std::atomic<uint64_t>* abort, std::atomic<uint64_t>* fault, Work& work)
      PEERLANE_REQUIRES(mutex_);
  Status zero(std::byte* memory, size_t bytes) const;

  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
  const std::shared_ptr<SharedCounterWords> counters_;
  PinnedPool& pool_;
  Mutex mutex_;
  std::map<CounterKey, std::weak_ptr<GraphCounter>> graphCounters_ PEERLANE_GUARDED_BY(mutex_);
  void* setUpStream_ = nullptr;
  GraphWords words_;
};

}  // namespace peerlane::stream
