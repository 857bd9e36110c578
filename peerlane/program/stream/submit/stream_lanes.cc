// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/stream/submit/stream_lanes.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "peerlane/os/cuda_driver.h"
#include "peerlane/program/stream/capture/stream_capture.h"

namespace peerlane::stream {

using cuda::api;
using cuda::check;

StreamLanes::~StreamLanes() {
  const cuda::CurrentContext current(*gpu_);
  for (void* stream : ownStreams_) (void)cudaStreamDestroy(static_cast<CUstream>(stream));
}

Status StreamLanes::open(std::byte* deviceWords, uint32_t ownStreams, int ownPriority) {
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

bool StreamLanes::isOf(const cuda::PrimaryContext& gpu, DeviceStream stream) {
  CUcontext context = nullptr;
  return api().cuStreamGetCtx(static_cast<CUstream>(stream.handle()), &context) == CUDA_SUCCESS &&
         context == gpu.handle();
}

Result<StreamLane*> StreamLanes::of(DeviceStream given) {
  void* const stream = given ? given.handle() : ownStreams_[nextOwn_++ % ownStreams_.size()];
  unsigned long long id = 0;
  PEERLANE_RETURN_IF_ERROR(
      check(api().cuStreamGetId(static_cast<CUstream>(stream), &id), "cuStreamGetId"));
  if (given && StreamCapture::isCapturing(stream))
    return Status(Code::kNotSupported, "the stream is being captured into a graph");
  auto found = lanesById_.find(id);
  if (found == lanesById_.end()) {
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
Result<StreamLane*> StreamLanes::make(void* stream, uint64_t id, bool isOwn) {
  StreamLane* lane = nullptr;
  if (lanes_.size() < kMost) {
    const size_t at = lanes_.size() * kWordBytes;
    auto made = std::make_unique<StreamLane>();
    made->completion = reinterpret_cast<std::atomic<uint64_t>*>(pinnedWords_ + at);
    made->words = {reinterpret_cast<uint32_t*>(deviceWords_ + at),
                   reinterpret_cast<kernel::PutPlace*>(deviceWords_ + at + 16)};
    lane = made.get();
    lanes_.push_back(std::move(made));
  } else {
    const auto idle =
        std::find_if(lanes_.begin(), lanes_.end(), [](const auto& known) { return known->idle(); });
    if (idle == lanes_.end())
      return Status(Code::kTryAgain, "work is under way on " + std::to_string(kMost) +
                                         " streams, the most that are followed");
    lane = idle->get();
    letGo(*lane);
    lanesById_.erase(lane->streamId);
  }
  lane->stream = stream;
  lane->streamId = id;
  lane->isOwn = isOwn;
  lanesById_[id] = lane;
  return lane;
}

// Takes back the memory that ended posts were reading.
void StreamLanes::letGo(StreamLane& lane) {
  while (!lane.held.empty() && lane.held.front().first.ended()) {
    pool_.giveBack(lane.held.front().second);
    lane.held.pop_front();
  }
  while (!lane.rooms.empty() && lane.rooms.front().first.ended()) lane.rooms.pop_front();
}

void StreamLanes::forgetWords(const std::byte* address, size_t bytes) {
  const auto inside = [&](const DevicePost& post) {
    const auto* word = reinterpret_cast<const std::byte*>(post.word());
    return word >= address && word < address + bytes;
  };
  for (const auto& lane : lanes_) {
    if (inside(lane->last)) lane->last = {};
    for (auto& [post, block] : lane->held)
      if (inside(post)) post = {};
  }
}

}  // namespace peerlane::stream
