// SPDX-License-Identifier: Apache-2.0
//
// Errands: the deferred submissions of an executor, and their submission thread. Another stream or
// a peer may wait for these copies, and the thread that asks for them (a turn of the progress
// engine) must not block. So the copies must not be queued after any work that waits, and add()
// must not block:
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
#include "peerlane/program/device/device_errand.h"
#include "peerlane/program/stream/submit/copy_poster.h"
#include "peerlane/program/stream/submit/stream_lanes.h"

namespace peerlane::stream {

class Errands {
 public:
  explicit Errands(std::shared_ptr<const cuda::PrimaryContext> gpu)
      : gpu_(std::move(gpu)), lanes_(gpu_, pool_) {}
  // Waits for the post that is being made. Requires: no thread uses a DeviceErrand any more, and
  // every wait on a stream has been released.
  ~Errands();
  Errands(const Errands&) = delete;
  Errands& operator=(const Errands&) = delete;

  // `deviceWords`: as StreamLanes::open(). With the GPU current.
  Status open(std::byte* deviceWords);
  // Never blocks. The thread posts in the order of the calls. Requires: a StreamProgram that adds
  // to no counter.
  std::unique_ptr<DeviceErrand> add(std::shared_ptr<DeviceProgram> program);

 private:
  void run();
  Result<DevicePost> post(const DeviceProgram& program);

  const std::shared_ptr<const cuda::PrimaryContext> gpu_;
  PinnedPool pool_{gpu_};  // used by the thread alone, as the next two
  StreamLanes lanes_;
  CopyPoster copies_{pool_};

  Mutex mutex_;
  Condition changed_;
  std::deque<std::shared_ptr<DeviceErrand::Job>> queue_ PEERLANE_GUARDED_BY(mutex_);
  bool stop_ PEERLANE_GUARDED_BY(mutex_) = false;
  std::thread thread_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane::stream
