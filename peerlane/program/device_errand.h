// SPDX-License-Identifier: Apache-2.0
//
// DeviceErrand: a post that a thread of the executor's makes, on a stream of its own, for somebody
// who must not stop: to put work on any stream can take until streams that wait go on
// (docs/gotchas.md). Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "peerlane/program/device_executor.h"

namespace peerlane {

class DeviceErrand {
 public:
  using Post = std::function<Result<DevicePost>(DeviceProgram&)>;

  explicit DeviceErrand(std::shared_ptr<DeviceProgram> program) : program_(std::move(program)) {}

  // Nothing of it is under way, and nothing will be.
  bool ended() const;
  // Once it has ended. kCancelled: it was taken back; else as DeviceExecutor::post().
  Status status() const;
  // Nothing of it will be done, unless its post has begun by now. Then it ends in its own time:
  // what the driver is told cannot be taken back.
  void takeBack();

  // For the executor: makes the post, once, unless it was taken back.
  void run(const Post& post);

 private:
  enum class State : uint8_t { kQueued, kPosting, kPosted, kFailed, kTakenBack };

  const std::shared_ptr<DeviceProgram> program_;
  std::atomic<State> state_{State::kQueued};  // release after the two below
  DevicePost post_;
  Status failure_;
};

}  // namespace peerlane
