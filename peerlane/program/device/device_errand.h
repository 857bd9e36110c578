// SPDX-License-Identifier: Apache-2.0
//
// DeviceErrand: a post that a thread of the executor's makes, on a stream of its own, for somebody
// who must not stop: to put work on any stream can take until streams that wait go on
// (docs/gotchas.md). Held by who asked for it; dropped while it is queued, it is taken
// back. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "peerlane/program/device/device_executor.h"

namespace peerlane {

class DeviceErrand {
 public:
  // What the executor has of it.
  class Job {
   public:
    explicit Job(std::shared_ptr<DeviceProgram> program) : program_(std::move(program)) {}
    // Makes the post, once, unless it was taken back.
    void run(const std::function<Result<DevicePost>(DeviceProgram&)>& post);

   private:
    friend class DeviceErrand;
    enum class State : uint8_t { kQueued, kPosting, kPosted, kFailed, kTakenBack };
    // True: it was queued, and is `next` now.
    bool leaveQueue(State next);

    const std::shared_ptr<DeviceProgram> program_;
    std::atomic<State> state_{State::kQueued};  // release after the two below
    DevicePost post_;
    Status failure_;
  };

  explicit DeviceErrand(std::shared_ptr<Job> job) : job_(std::move(job)) {}
  ~DeviceErrand() { takeBack(); }
  DeviceErrand(const DeviceErrand&) = delete;
  DeviceErrand& operator=(const DeviceErrand&) = delete;

  // Its post was not made yet.
  bool isToCome() const;
  // Nothing of it is under way, and nothing will be.
  bool ended() const;
  // Once it has ended. kCancelled: it was taken back; else as DeviceExecutor::post().
  Status status() const;
  // Nothing of it will be done, unless its post has begun by now. Then it ends in its own time:
  // what the driver is told cannot be taken back.
  void takeBack();

 private:
  using State = Job::State;
  const std::shared_ptr<Job> job_;
};

}  // namespace peerlane
