// SPDX-License-Identifier: Apache-2.0
//
// SubmissionThread: makes the deferred submissions of an executor. Another stream or a peer may
// wait for these copies, and the thread that asks for them (a turn of the progress engine) must not
// block. So the copies must not be queued after any work that waits, and add() must not block:
//
// * a thread of their own posts them, one after the other. When a hardware queue is full, whichever
//   stream filled it, the driver blocks the thread that puts work there (docs/gotchas.md);
// * they have streams of their own, on which no work ever waits;
// * these streams have a priority of their own: if streams of one priority have hardware queues of
//   their own, no waiting work is in theirs;
// * they need no lock of the executor, which a thread may hold while it is blocked in a post to a
//   full stream.
//
// The thread starts with the first call of add(). Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <thread>

#include "peerlane/core/mutex.h"
#include "peerlane/program/device/deferred_submission.h"
#include "peerlane/program/stream/submit/copy_poster.h"
#include "peerlane/program/stream/submit/submission_queues.h"

namespace peerlane::stream {

class SubmissionThread {
 public:
  explicit SubmissionThread(std::shared_ptr<const cuda::PrimaryContext> gpu)
      : gpu_(std::move(gpu)), queues_(gpu_, pool_) {}
  // Waits for the post that is being made. Requires: no thread uses a DeferredSubmission any more,
  // and every wait on a stream has been released.
  ~SubmissionThread();
  SubmissionThread(const SubmissionThread&) = delete;
  SubmissionThread& operator=(const SubmissionThread&) = delete;

  // `deviceWords`: as SubmissionQueues::open(). With the GPU current.
  Status open(std::byte* deviceWords);
  // Never blocks. The thread posts in the order of the calls. Requires: a StreamProgram that adds
  // to no counter.
  std::unique_ptr<DeferredSubmission> add(std::shared_ptr<DeviceProgram> program);

 private:
  void run();
  Result<DevicePost> post(DeviceProgram& program);

  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
  PinnedPool pool_{gpu_};  // used by the thread alone, as the next two
  SubmissionQueues queues_;
  CopyPoster copies_{pool_};

  Mutex mutex_;
  Condition changed_;
  std::deque<std::shared_ptr<DeferredSubmission::Job>> waiting_ PEERLANE_GUARDED_BY(mutex_);
  bool stop_ PEERLANE_GUARDED_BY(mutex_) = false;
  std::thread thread_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane::stream
