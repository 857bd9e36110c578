// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/submit/submission_queues.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "peerlane/os/cuda_driver.h"
#include "peerlane/program/stream/capture/stream_capture.h"

namespace peerlane::stream {

using cuda::api;
using cuda::check;

SubmissionQueues::~SubmissionQueues() {
  const cuda::CurrentContext current(*gpu_);
  for (void* stream : ownStreams_) (void)cudaStreamDestroy(static_cast<CUstream>(stream));
}

Status SubmissionQueues::open(std::byte* deviceWords, uint32_t ownStreams, int ownPriority) {
  deviceWords_ = deviceWords;
  for (uint32_t i = 0; i < ownStreams; ++i) {
    CUstream made = nullptr;
    PEERLANE_RETURN_IF_ERROR(
        check(cudaStreamCreateWithPriority(&made, cudaStreamNonBlocking, ownPriority),
              "cudaStreamCreateWithPriority"));
    ownStreams_.push_back(made);
  }
  PEERLANE_ASSIGN(const PinnedBlock words, pool_.take(kBytes));
  std::memset(words.data, 0, kBytes);
  pinnedWords_ = words.data;
  return Status::ok();
}

bool SubmissionQueues::isOf(const cuda::PrimaryContext& gpu, DeviceStream stream) {
  CUcontext context = nullptr;
  return api().cuStreamGetCtx(static_cast<CUstream>(stream.handle()), &context) == CUDA_SUCCESS &&
         context == gpu.handle();
}

Result<SubmissionQueue*> SubmissionQueues::of(DeviceStream given) {
  void* const stream = given ? given.handle() : ownStreams_[nextOwn_++ % ownStreams_.size()];
  // First: to ask such a stream for its id ends the capture.
  if (given && StreamCapture::isCapturing(stream))
    return Status(Code::kNotSupported, "the stream is being captured into a graph");
  unsigned long long id = 0;
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuStreamGetId(static_cast<CUstream>(stream), &id), "cuStreamGetId"));
  auto found = queuesById_.find(id);
  if (found == queuesById_.end()) {
    if (given && !isOf(*gpu_, given))
      return Status(Code::kInvalidArgument,
                    "the stream is not one of cuda:" + std::to_string(gpu_->gpu()) +
                        ", where the memory lies");
    return make(stream, id, !given);
  }
  letGo(*found->second);
  return found->second;
}

// A new stream takes a place of its own, or that of a stream which has no work under way.
Result<SubmissionQueue*> SubmissionQueues::make(void* stream, uint64_t id, bool isOwn) {
  SubmissionQueue* queue = nullptr;
  if (queues_.size() < kMost) {
    const size_t at = queues_.size() * kWordBytes;
    auto made = std::make_unique<SubmissionQueue>();
    made->completion = reinterpret_cast<std::atomic<uint64_t>*>(pinnedWords_ + at);
    made->words = {reinterpret_cast<uint32_t*>(deviceWords_ + at),
                   reinterpret_cast<kernel::PutPlace*>(deviceWords_ + at + 16)};
    queue = made.get();
    queues_.push_back(std::move(made));
  } else {
    const auto idle = std::find_if(queues_.begin(), queues_.end(),
                                   [](const auto& known) { return known->idle(); });
    if (idle == queues_.end())
      return Status(Code::kTryAgain, "work is under way on " + std::to_string(kMost) +
                                         " streams, the most that are followed");
    queue = idle->get();
    letGo(*queue);
    queuesById_.erase(queue->streamId);
  }
  queue->stream = stream;
  queue->streamId = id;
  queue->isOwn = isOwn;
  queuesById_[id] = queue;
  return queue;
}

// Takes back the memory that ended posts were reading.
void SubmissionQueues::letGo(SubmissionQueue& queue) {
  while (!queue.held.empty() && queue.held.front().first.ended()) {
    pool_.giveBack(queue.held.front().second);
    queue.held.pop_front();
  }
  while (!queue.rooms.empty() && queue.rooms.front().first.ended()) queue.rooms.pop_front();
}

void SubmissionQueues::forgetWords(const std::byte* address, size_t bytes) {
  const auto inside = [&](const DevicePost& post) {
    const auto* word = reinterpret_cast<const std::byte*>(post.word());
    return word >= address && word < address + bytes;
  };
  for (const auto& queue : queues_) {
    if (inside(queue->last)) queue->last = {};
    for (auto& [post, block] : queue->held)
      if (inside(post)) post = {};
  }
}

}  // namespace peerlane::stream
