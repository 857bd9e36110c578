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
Result<DevicePost> CopyPoster::post(const StreamProgram& program, StreamLane& lane,
                                    const DeviceIndices& indices,
                                    const CounterLanes::Claim* counter, bool behindWait,
                                    const std::atomic<uint64_t>* abort) {
  const bool queued = program.prefersKernelBehindWork(lane.isOwn) && !lane.idle();
  if (program.engine() == Engine::kCe && !indices.onDevice && !queued)
    return byCopyEngine(program, lane, indices, counter);
  return byKernel(program, lane, indices, counter, behindWait, abort);
}

Result<std::atomic<uint64_t>*> CopyPoster::faultWord(StreamLane& lane, uint64_t number) {
  if (lane.faults == nullptr) {
    constexpr size_t kBytes = StreamLane::kFaults * sizeof(uint64_t);
    PEERLANE_ASSIGN(const PinnedBlock words, pool_.take(kBytes));
    std::memset(words.data, 0, kBytes);
    lane.faults = reinterpret_cast<std::atomic<uint64_t>*>(words.data);
  }
  return lane.faults + number % StreamLane::kFaults;
}

Result<DevicePost> CopyPoster::byKernel(const StreamProgram& program, StreamLane& lane,
                                        const DeviceIndices& indices,
                                        const CounterLanes::Claim* counter, bool behindWait,
                                        const std::atomic<uint64_t>* abort) {
  const uint64_t number = lane.posted + 1;
  kernel::CopyLaunch launch;
  launch.stream = lane.stream;
  launch.overlapsEnd = !behindWait;
  launch.arrivals = lane.words.arrivals;
  launch.wait.abort = reinterpret_cast<const uint64_t*>(abort);
  if (counter != nullptr) {
    launch.tail.stores[0] = {counter->word, {nullptr, counter->total}};
    launch.tail.storeCount = 1;
  }
  launch.tail.completion = {plainWord(lane.completion), {nullptr, number}};
  std::atomic<uint64_t>* fault = nullptr;
  if (indices.onDevice) {
    PEERLANE_ASSIGN(fault, faultWord(lane, number));
  }
  PinnedBlock held;
  PEERLANE_RETURN_IF_ERROR(
      describeCopies(program, indices, plainWord(fault), number, pool_, launch, held));
  if (Status launched = kernel::launchCopy(launch); !launched.isOk()) {
    if (held.data != nullptr) pool_.giveBack(held);
    return launched;
  }
  const DevicePost post = lane.tellsEnd(fault);
  if (held.data != nullptr) lane.held.emplace_back(post, held);
  return post;
}

// The stream stores only one word after the copies, because each store costs it some microseconds:
// where it stores a counter, the counter's word is the completion word as well.
Result<DevicePost> CopyPoster::byCopyEngine(const StreamProgram& program, StreamLane& lane,
                                            const DeviceIndices& indices,
                                            const CounterLanes::Claim* counter) {
  if (program.blocks().blockBytes != 0) {
    scratch_.clear();
    program.expand(indices, scratch_);
    PEERLANE_RETURN_IF_ERROR(copyEngine_.copy(scratch_, lane.stream));
  } else {
    PEERLANE_RETURN_IF_ERROR(copyEngine_.copy(program.pieces(), lane.stream));
  }
  if (counter == nullptr) {
    PEERLANE_RETURN_IF_ERROR(storeWord(lane.stream, lane.completion, lane.posted + 1));
    return lane.tellsEnd();
  }
  PEERLANE_RETURN_IF_ERROR(storeWord(lane.stream, counter->word, counter->total));
  lane.last = {reinterpret_cast<const std::atomic<uint64_t>*>(counter->word), counter->total};
  return lane.last;
}

}  // namespace peerlane::stream
