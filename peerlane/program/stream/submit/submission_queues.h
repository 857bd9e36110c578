// SPDX-License-Identifier: Apache-2.0
//
// SubmissionQueues: a SubmissionQueue for each stream that an executor has seen, and a few streams
// of its own. External synchronization required, except for functions that say otherwise.
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/os/cuda.h"
#include "peerlane/program/stream/queues/submission_queue.h"

namespace peerlane::stream {

class SubmissionQueues {
 public:
  static constexpr uint32_t kMost = 512;
  static constexpr size_t kWordBytes = 64;  // of each kind of memory, for each queue
  static constexpr size_t kBytes = kMost * kWordBytes;

  SubmissionQueues(std::shared_ptr<const cuda::PrimaryContext> gpu, PinnedPool& pool)
      : gpu_(std::move(gpu)), pool_(pool) {}
  ~SubmissionQueues();
  SubmissionQueues(const SubmissionQueues&) = delete;
  SubmissionQueues& operator=(const SubmissionQueues&) = delete;

  // `deviceWords`: kBytes of zeroed memory of the GPU, which is current. `ownPriority`: of the
  // streams of its own, as CUDA counts them.
  Status open(std::byte* deviceWords, uint32_t ownStreams, int ownPriority);
  // With the GPU current; no stream: one of our own. Errors: kNotSupported (it is being captured),
  // kInvalidArgument (of another GPU), kTryAgain (work is under way on too many).
  Result<SubmissionQueue*> of(DeviceStream stream);
  // Needs no lock.
  static bool isOf(const cuda::PrimaryContext& gpu, DeviceStream stream);
  // Words in that range are no completion words of posts any more.
  void forgetWords(const std::byte* address, size_t bytes);

 private:
  Result<SubmissionQueue*> make(void* stream, uint64_t id, bool isOwn);
  void letGo(SubmissionQueue& queue);

  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
  PinnedPool& pool_;
  std::vector<void*> ownStreams_;  // CUstream
  uint32_t nextOwn_ = 0;
  std::byte* deviceWords_ = nullptr;
  std::byte* pinnedWords_ = nullptr;
  std::vector<std::unique_ptr<SubmissionQueue>> queues_;
  std::unordered_map<uint64_t, SubmissionQueue*> queuesById_;
};

}  // namespace peerlane::stream
