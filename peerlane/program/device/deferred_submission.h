// SPDX-License-Identifier: Apache-2.0
//
// DeferredSubmission: a post that a thread of the executor makes, on a stream of the executor's
// own, for a caller that must not block: putting work on any stream can block until streams that
// wait go on (docs/gotchas.md). The caller owns the object and polls it; nothing wakes the caller.
// Destroying it takes the post back if that has not begun. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "peerlane/program/device/device_executor.h"

namespace peerlane {

class DeferredSubmission {
 public:
  // The part that the executor holds, too.
  class Job {
   public:
    explicit Job(std::shared_ptr<DeviceProgram> program) : program_(std::move(program)) {}
    // Makes the post unless it was taken back. The executor's thread calls it once.
    void run(const std::function<Result<DevicePost>(DeviceProgram&)>& post);

   private:
    friend class DeferredSubmission;
    enum class State : uint8_t { kQueued, kPosting, kPosted, kFailed, kTakenBack };
    // True: it was queued, and is `next` now.
    bool leaveQueue(State next);

    const std::shared_ptr<DeviceProgram> program_;
    std::atomic<State> state_{State::kQueued};  // release after the two below
    DevicePost post_;
    Status failure_;
  };

  explicit DeferredSubmission(std::shared_ptr<Job> job) : job_(std::move(job)) {}
  ~DeferredSubmission() { takeBack(); }
  DeferredSubmission(const DeferredSubmission&) = delete;
  DeferredSubmission& operator=(const DeferredSubmission&) = delete;

  // The post is still queued, or is being made.
  bool isToCome() const;
  // No work of the post is under way, and none will be.
  bool ended() const;
  // Requires: ended(). kCancelled: it was taken back; else as DeviceExecutor::post().
  Status status() const;
  // Cancels the post unless the executor's thread has already begun to make it. A post that has
  // begun ends in its own time, because the driver takes no work back.
  void takeBack();

 private:
  using State = Job::State;
  const std::shared_ptr<Job> job_;
};

}  // namespace peerlane
