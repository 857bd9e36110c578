// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/submit/copy_poster.h"

#include <cstring>

#include "peerlane/program/kernel/copy/copy_kernel.h"
#include "peerlane/program/stream/copy/stream_launch.h"
#include "peerlane/program/stream/copy/word_ops.h"

namespace peerlane::stream {
namespace {

uint64_t* plainWord(std::atomic<uint64_t>* word) {
  return reinterpret_cast<uint64_t*>(word);
}

}  // namespace

// Only kernels can read block numbers in device memory.
Result<DevicePost> CopyPoster::post(StreamProgram& program, SubmissionQueue& queue,
                                    const DeviceIndices& indices,
                                    const CounterWords::Claim* counter, bool behindWait,
                                    const std::atomic<uint64_t>* abort) {
  const bool queued = program.prefersKernelBehindWork(queue.isOwn) && !queue.idle();
  if (program.engine() == Engine::kCe && !indices.onDevice && !queued)
    return byCopyEngine(program, queue, indices, counter);
  return byKernel(program, queue, indices, counter, behindWait, abort);
}

Result<std::atomic<uint64_t>*> CopyPoster::faultWord(SubmissionQueue& queue, uint64_t number) {
  if (queue.faults == nullptr) {
    constexpr size_t kBytes = SubmissionQueue::kFaults * sizeof(uint64_t);
    PEERLANE_ASSIGN(const PinnedBlock words, pool_.take(kBytes));
    std::memset(words.data, 0, kBytes);
    queue.faults = reinterpret_cast<std::atomic<uint64_t>*>(words.data);
  }
  return queue.faults + number % SubmissionQueue::kFaults;
}

Result<DevicePost> CopyPoster::byKernel(StreamProgram& program, SubmissionQueue& queue,
                                        const DeviceIndices& indices,
                                        const CounterWords::Claim* counter, bool behindWait,
                                        const std::atomic<uint64_t>* abort) {
  const uint64_t number = queue.posted + 1;
  kernel::CopyLaunch launch;
  launch.stream = queue.stream;
  launch.overlapsEnd = !behindWait;
  launch.arrivals = queue.words.arrivals;
  launch.wait.abort = reinterpret_cast<const uint64_t*>(abort);
  if (counter != nullptr) {
    launch.tail.stores[0] = {counter->word, {nullptr, counter->total}};
    launch.tail.storeCount = 1;
  }
  launch.tail.completion = {plainWord(queue.completion), {nullptr, number}};
  std::atomic<uint64_t>* fault = nullptr;
  if (indices.onDevice) {
    PEERLANE_ASSIGN(fault, faultWord(queue, number));
  }
  PinnedBlock held;
  PEERLANE_RETURN_IF_ERROR(
      describeCopies(program, indices, plainWord(fault), number, pool_, launch, held));
  if (Status launched = kernel::launchCopy(launch); !launched.isOk()) {
    if (held.data != nullptr) pool_.giveBack(held);
    return launched;
  }
  const DevicePost post = queue.completionEnqueued(fault);
  if (program.isFar()) held = program.takeFar();
  if (held.data != nullptr) queue.held.emplace_back(post, held);
  return post;
}

// The stream stores only one word after the copies, because each store costs it some microseconds:
// where it stores a counter, the counter's word is the completion word as well.
Result<DevicePost> CopyPoster::byCopyEngine(const StreamProgram& program, SubmissionQueue& queue,
                                            const DeviceIndices& indices,
                                            const CounterWords::Claim* counter) {
  if (program.blocks().blockBytes != 0) {
    scratch_.clear();
    program.expand(indices, scratch_);
    PEERLANE_RETURN_IF_ERROR(copyEngine_.copy(scratch_, queue.stream));
  } else {
    PEERLANE_RETURN_IF_ERROR(copyEngine_.copy(program.pieces(), queue.stream));
  }
  if (counter == nullptr) {
    PEERLANE_RETURN_IF_ERROR(storeWord(queue.stream, queue.completion, queue.posted + 1));
    return queue.completionEnqueued();
  }
  PEERLANE_RETURN_IF_ERROR(storeWord(queue.stream, counter->word, counter->total));
  queue.last = {reinterpret_cast<const std::atomic<uint64_t>*>(counter->word), counter->total};
  return queue.last;
}

}  // namespace peerlane::stream
